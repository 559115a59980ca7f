"""A box with every kind of bound, entry by entry against torch's own distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import LogNormal, Normal, kl_divergence

from tdheads import TanhNormal
from tdheads.distributions import BoxNormal
from tdheads.distributions.box_normal import Sides

INF = torch.inf
LOW, HIGH = torch.tensor([2.0, -INF, -INF, -1.0]), torch.tensor([INF, 5.0, INF, 3.0])
PARAMS = {"loc": torch.tensor([0.3, -0.5, 1.0, 0.2]), "scale": torch.tensor([0.5, 1.2, 2.0, 0.7])}


def build(dtype: torch.dtype = torch.float64) -> BoxNormal:
    loc, scale = (value.to(dtype) for value in PARAMS.values())
    return BoxNormal(loc, scale, Sides(LOW, HIGH))


def test_each_entry_is_the_distribution_that_its_bounds_ask_for() -> None:
    dist = build()
    draws = dist.sample((1000,))
    loc, scale = dist.free.loc, dist.free.scale
    expected = torch.stack(
        [
            LogNormal(loc[0], scale[0]).log_prob(draws[:, 0] - 2),
            LogNormal(loc[1], scale[1]).log_prob(5 - draws[:, 1]),
            Normal(loc[2], scale[2]).log_prob(draws[:, 2]),
            TanhNormal(loc[3:], scale[3:], -1.0, 3.0).log_prob(draws[:, 3:]).squeeze(-1),
        ],
        -1,
    )
    torch.testing.assert_close(dist.log_prob(draws), expected)
    entropy = torch.stack(
        [
            LogNormal(loc[0], scale[0]).entropy(),
            LogNormal(loc[1], scale[1]).entropy(),
            Normal(loc[2], scale[2]).entropy(),
            TanhNormal(loc[3:], scale[3:], -1.0, 3.0).entropy().squeeze(-1),
        ]
    )
    torch.testing.assert_close(dist.entropy(), entropy)
    assert (draws[:, 0] > 2).all()
    assert (draws[:, 1] < 5).all()


def test_kl_is_that_of_the_latent_normals() -> None:
    p, sides = build(), Sides(LOW, HIGH)
    q = BoxNormal(p.free.loc + 0.3, p.free.scale * 1.5, sides)
    torch.testing.assert_close(kl_divergence(p, q), kl_divergence(p.free, q.free))


@pytest.mark.parametrize("what", ["log_prob", "entropy", "rsample"])
def test_gradcheck(what: str) -> None:
    action = build().sample()

    def fn(loc: Tensor, scale: Tensor) -> Tensor:
        dist = BoxNormal(loc, scale, Sides(LOW, HIGH))
        torch.manual_seed(0)
        return {
            "log_prob": lambda: dist.log_prob(action),
            "entropy": dist.entropy,
            "rsample": dist.rsample,
        }[what]()

    inputs = tuple(value.double().requires_grad_() for value in PARAMS.values())
    assert torch.autograd.gradcheck(fn, inputs)


def test_huge_latents_and_rounded_actions_stay_finite() -> None:
    loc = torch.full((4,), 300.0, requires_grad=True)
    dist = BoxNormal(loc, torch.ones(4), Sides(torch.full((4,), -INF), torch.full((4,), INF)))
    dist.rsample().sum().backward()
    assert loc.grad is not None
    assert loc.grad.isfinite().all()
    tight = BoxNormal(torch.full((2,), -40.0), torch.ones(2), Sides(LOW[:2], HIGH[:2]))
    written = tight.sample()
    assert written.tolist() == [2.0, 5.0]  # rounded onto the bounds
    assert tight.log_prob(written).isfinite().all()


def test_an_action_beyond_its_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'value': 1.5 in row 0 .* is outside of its bound"):
        build().log_prob(torch.tensor([1.5, 0.0, 0.0, 0.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="expected low <= high"):
        Sides(HIGH, LOW)


def test_kl_of_other_bounds_is_an_error() -> None:
    p, q = build(), build()
    assert (kl_divergence(p, q) == 0).all()
    high = HIGH.clone()
    high[1] += 1
    moved = BoxNormal(q.free.loc, q.free.scale, Sides(LOW, high))
    with pytest.raises(ValueError, match="same bounds"):
        kl_divergence(p, moved)
