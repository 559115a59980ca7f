"""One-hot samples: exact values, and the gradient that each method promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tdheads import MaskedMultiOneHot, MaskedOneHotCategorical
from tests.cases import NVEC, N

B = 5
METHODS = ("pass_through", "relaxed")
both = pytest.mark.parametrize("method", METHODS)


def setting(rows: int = B) -> tuple[Tensor, Tensor]:
    logits = torch.randn(rows, N, dtype=torch.float64) * 2
    mask = torch.rand(rows, N) < 0.6
    mask[:, 2] = True
    return logits, mask


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_every_drawn_row_is_exactly_one_hot(method: str, dtype: torch.dtype) -> None:
    logits, mask = setting(20_000)
    dist = MaskedOneHotCategorical(logits.to(dtype), mask, grad_method=method, temperature=0.3)
    drawn = dist.rsample()
    assert ((drawn == 0) | (drawn == 1)).all()
    assert (drawn.sum(-1) == 1).all()
    assert (drawn[~mask] == 0).all()


def test_modes_with_ties_have_exactly_one_1() -> None:
    logits = torch.randn(2000, 32).round().bfloat16()
    mode = MaskedOneHotCategorical(logits, torch.rand(2000, 32) < 2).mode
    assert (mode.sum(-1) == 1).all()


def test_pass_through_has_the_gradient_of_the_softmax() -> None:
    logits, mask = setting()
    weights = torch.randn(B, N, dtype=torch.float64)
    logits.requires_grad_()
    dist = MaskedOneHotCategorical(logits, mask)
    (found,) = torch.autograd.grad((dist.rsample() * weights).sum(), logits)
    # d softmax_j / d z_i = p_j (1[i = j] - p_i), over the legal choices
    p = torch.softmax(logits.detach().masked_fill(~mask, -torch.inf), -1)
    expected = p * (weights - (p * weights).sum(-1, keepdim=True))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (found[~mask] == 0).all()


def test_relaxed_has_the_gradient_of_the_gumbel_softmax_that_was_drawn() -> None:
    logits, mask = setting()
    weights = torch.randn(B, N, dtype=torch.float64)
    logits.requires_grad_()
    temperature = 0.7
    torch.manual_seed(3)
    drawn = MaskedOneHotCategorical(
        logits, mask, grad_method="relaxed", temperature=temperature
    ).rsample()
    (found,) = torch.autograd.grad((drawn * weights).sum(), logits)
    torch.manual_seed(3)
    noise = -torch.empty(B, N, dtype=torch.float64).exponential_().log()
    p = torch.softmax(logits.detach().masked_fill(~mask, -torch.inf), -1)
    soft = torch.softmax((p.log() + noise) / temperature, -1)
    assert (drawn.argmax(-1) == soft.argmax(-1)).all()
    # through the softmax of (log p + g) / tau; the one of log p drops out, as its shift is common
    expected = soft * (weights - (soft * weights).sum(-1, keepdim=True)) / temperature
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (found[~mask] == 0).all()


@both
def test_gradients_are_finite_in_neutral_rows_and_zero(method: str) -> None:
    logits, mask = setting()
    mask[1] = False
    logits.requires_grad_()
    dist = MaskedOneHotCategorical(logits, mask, grad_method=method, on_empty="neutral")
    (grad,) = torch.autograd.grad(dist.rsample().square().sum(), logits)
    assert grad.isfinite().all()
    assert (grad[1] == 0).all()


@both
def test_a_single_choice_keeps_its_batch_dim(method: str) -> None:
    dist = MaskedOneHotCategorical(torch.zeros(4, 1), grad_method=method)
    for drawn in (dist.sample(), dist.rsample(), dist.mode):
        assert drawn.shape == torch.Size([4, 1])
        assert (drawn == 1).all()
    assert dist.log_prob(dist.mode).tolist() == [0] * 4


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32, torch.bfloat16], ids=str)
def test_stored_one_hots_of_every_dtype_score_the_same(dtype: torch.dtype) -> None:
    dist = MaskedOneHotCategorical(*setting())
    drawn = dist.sample()
    assert (dist.log_prob(drawn.to(dtype)) == dist.log_prob(drawn)).all()


@pytest.mark.parametrize(
    "value", [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.5, 0.0], [2.0, 0.0, 0.0]], ids=str
)
def test_values_that_are_not_one_hot_are_refused(value: list[float]) -> None:
    dist = MaskedOneHotCategorical(torch.zeros(2, 3))
    stored = torch.tensor([[0.0, 1.0, 0.0], value])
    with pytest.raises(ValueError, match=r"'value': expected one-hot vectors, got .* in row 1"):
        dist.log_prob(stored)


@both
def test_multi_one_hot_draws_one_per_dimension_with_a_gradient(method: str) -> None:
    logits = torch.randn(2000, sum(NVEC), requires_grad=True)
    dist = MaskedMultiOneHot(logits, NVEC, grad_method=method)
    drawn = dist.rsample()
    assert ((drawn == 0) | (drawn == 1)).all()
    for part in drawn.split(NVEC, -1):
        assert (part.sum(-1) == 1).all()
    (grad,) = torch.autograd.grad((drawn * torch.randn_like(drawn)).sum(), logits)
    for part in grad.split(NVEC, -1):  # a shift of a dimension's logits changes nothing
        torch.testing.assert_close(part.sum(-1), torch.zeros(2000), rtol=0, atol=1e-5)
    assert (grad != 0).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"grad_method": "straight"}, "grad_method: expected one of")],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskedOneHotCategorical(torch.zeros(1, 2), **options)
