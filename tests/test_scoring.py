"""The backward pass of log-prob and entropy that is written by hand, at any number of choices.

It takes over beyond ``scoring.FEW`` numbers, which the batches of other tests do not have.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tdheads import ClipPPOLoss
from tdheads.distributions import MaskedCategorical, MaskedMultiCategorical, scoring
from tests.batches import collect, gradients, move
from tests.cases import HEADS, HeadCase, case_ids, critic

NVEC = [3, 2, 4]


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Use it for every batch; collect its uses."""
    monkeypatch.setattr(scoring, "FEW", 0)
    used: list[bool] = []
    score = scoring._score

    def counted(*args: object) -> object:
        used.append(True)
        return score(*args)

    monkeypatch.setattr(scoring, "_score", counted)
    return used


def one(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    dist = MaskedCategorical(logits, mask)
    return dist.log_prob(torch.tensor([0, 3])), dist.entropy()


def several(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    dist = MaskedMultiCategorical(logits, NVEC, mask)
    return dist.log_prob(torch.tensor([[0, 1, 3], [2, 0, 0]])), dist.entropy()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scores", [one, several])
def test_gradient_and_its_gradient(scores: object, masked: bool, by_hand: list[bool]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, sum(NVEC), dtype=torch.float64, requires_grad=True)
    mask = None
    if masked:
        mask = torch.ones(2, sum(NVEC), dtype=torch.bool)
        mask[:, [1, 6]] = False
    assert torch.autograd.gradcheck(lambda x: scores(x, mask), logits)  # type: ignore[operator]
    assert torch.autograd.gradgradcheck(lambda x: scores(x, mask), logits)  # type: ignore[operator]
    assert by_hand


@pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
def test_every_loss_gradient_is_that_of_torchs_own_steps(
    case: HeadCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    td = collect(case, actor := case.actor(torch.float64), [7], torch.float64)
    move(actor)
    loss = ClipPPOLoss(actor, critic().double())
    found = []
    for few in (0, 10**9):
        monkeypatch.setattr(scoring, "FEW", few)
        found.append(gradients(loss, td))
    (out, grads), (expected, steps) = found
    torch.testing.assert_close(out.to_dict(), expected.to_dict(), rtol=1e-12, atol=1e-12)
    assert grads.keys() == steps.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, steps[name], rtol=1e-10, atol=1e-12)


def test_an_illegal_action_has_no_gradient(by_hand: list[bool]) -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    dist = MaskedCategorical(logits, torch.tensor([[True, True, False]]))
    (dist.log_prob(torch.tensor([2])).exp() + dist.entropy()).sum().backward()
    assert logits.grad is not None
    assert (logits.grad == 0).all()
    assert by_hand
