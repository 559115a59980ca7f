"""Laws of the stretched beta distribution, by numerical integration in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from tdheads import BetaHead, ScaledBeta

BOUNDS = [(0.0, 1.0), (-1.0, 3.0)]
PARAMS = [(2.0, 2.0), (1.0, 1.0), (5.0, 1.5), (30.0, 70.0)]
with_bounds = pytest.mark.parametrize("bounds", BOUNDS, ids=str)
with_params = pytest.mark.parametrize("params", PARAMS, ids=str)


def build(params: tuple[float, float], bounds: tuple[float, float] = (0.0, 1.0)) -> ScaledBeta:
    alpha, beta = (torch.tensor([p], dtype=torch.float64) for p in params)
    return ScaledBeta(alpha, beta, *bounds)


def density(params: tuple[float, float], bounds: tuple[float, float]) -> tuple[np.ndarray, ...]:
    """Grid and density, normalised numerically: no gamma function is shared with the code."""
    low, high = bounds
    grid = np.linspace(low, high, 400_001)[1:-1]
    unit = (grid - low) / (high - low)
    shape = unit ** (params[0] - 1) * (1 - unit) ** (params[1] - 1)
    return grid, shape / np.trapezoid(shape, grid)


@with_bounds
@with_params
def test_log_prob_entropy_and_mean(
    params: tuple[float, float], bounds: tuple[float, float]
) -> None:
    grid, expected = density(params, bounds)
    dist = build(params, bounds)
    found = dist.log_prob(torch.tensor(grid[::1000]).unsqueeze(-1)).squeeze(-1).exp()
    torch.testing.assert_close(found, torch.tensor(expected[::1000]), rtol=1e-4, atol=1e-4)
    entropy = -np.trapezoid(expected * np.log(expected.clip(1e-300)), grid)
    assert dist.entropy().item() == pytest.approx(entropy, abs=1e-4)
    assert dist.mean.item() == pytest.approx(np.trapezoid(expected * grid, grid), abs=1e-4)
    if params != (1.0, 1.0):
        assert dist.mode.item() == pytest.approx(grid[expected.argmax()], abs=1e-4)


@with_bounds
def test_kl(bounds: tuple[float, float]) -> None:
    (grid, p), (_, q) = density((2.0, 3.0), bounds), density((4.0, 1.5), bounds)
    expected = np.trapezoid(p * np.log(p / q), grid)
    found = kl_divergence(build((2.0, 3.0), bounds), build((4.0, 1.5), bounds))
    assert found.item() == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="same bounds"):
        kl_divergence(build((2.0, 3.0), bounds), build((2.0, 3.0), (0.0, 7.0)))


@pytest.mark.parametrize("what", ["log_prob", "entropy", "kl first", "kl second"])
def test_gradcheck(what: str) -> None:
    other = build((2.0, 3.0), (0.0, 10.0))
    action = torch.linspace(0.1, 9.5, 5, dtype=torch.float64)

    def fn(alpha: Tensor, beta: Tensor) -> Tensor:
        dist = ScaledBeta(alpha, beta, 0.0, 10.0)
        if what == "log_prob":
            return dist.log_prob(action)
        if what == "entropy":
            return dist.entropy()
        wide = other.expand([5])
        return kl_divergence(dist, wide) if what == "kl first" else kl_divergence(wide, dist)

    alpha = (torch.rand(5, dtype=torch.float64) + 1.5).requires_grad_()
    beta = (torch.rand(5, dtype=torch.float64) + 1.5).requires_grad_()
    assert torch.autograd.gradcheck(fn, (alpha, beta))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_at_the_bounds_are_those_of_the_written_action(
    dtype: torch.dtype,
) -> None:
    dist = ScaledBeta(torch.full((1000,), 40.0), torch.full((1000,), 1.1), -1.0, 0.3)
    written = dist.sample().to(dtype)
    written[:3] = torch.tensor([-1.0, 0.3, 0.3])
    assert dist.log_prob(written).isfinite().all()
    assert (dist.log_prob(written) == dist.log_prob(written.clone())).all()


def test_draws_follow_the_density() -> None:
    """Kolmogorov-Smirnov; a right sampler exceeds the limit once in 10,000 seeds."""
    draws = 20_000
    grid, p = density((2.0, 5.0), (0.0, 10.0))
    cdf = np.cumsum(p) * (grid[1] - grid[0])
    sample = np.sort(build((2.0, 5.0), (0.0, 10.0)).sample((draws,)).squeeze(-1).numpy())
    steps = np.arange(1, draws + 1) / draws
    gap = np.abs(np.interp(sample, grid, cdf) - steps).max()
    assert gap < 2.23 / draws**0.5 + 1 / draws


def test_fixed_entries_outside_actions_and_nan() -> None:
    low, high = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0])
    dist = ScaledBeta(torch.full((4, 2), 2.0), torch.full((4, 2), 2.0), low, high)
    assert (dist.sample()[:, 1] == 2).all()
    assert (dist.log_prob(dist.sample())[:, 1] == 0).all()
    assert (dist.entropy()[:, 1] == 0).all()
    with pytest.raises(ValueError, match=r"'value': 1.5 in row 2 .* is outside of"):
        build((2.0, 2.0)).expand([3]).log_prob(torch.tensor([0.5, 0.5, 1.5]))
    with pytest.raises(ValueError, match="nan in row 0"):
        ScaledBeta(torch.tensor([torch.nan]), torch.ones(1))


def test_the_head_keeps_one_peak_inside_the_bounds() -> None:
    head = BetaHead("action", 0.0, 10.0, shape=(2,))
    raw = torch.linspace(-50, 50, 14).view(7, 2)
    dist = head.distribution(alpha=raw, beta=-raw).base_dist
    assert (dist.alpha >= 1).all()
    assert (dist.beta >= 1).all()
    assert ((dist.mean >= 0) & (dist.mean <= 10)).all()
