"""Laws of the squashed normal, against the change of variables in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from tdheads import TanhNormal
from tests import oracle

BOUNDS = [(-1.0, 1.0), (0.0, 10.0), (-3.0, 0.5)]
PARAMS = [(0.0, 1.0), (0.7, 0.3), (-2.0, 1.5), (3.0, 4.0)]
with_bounds = pytest.mark.parametrize("bounds", BOUNDS, ids=str)
with_params = pytest.mark.parametrize("params", PARAMS, ids=str)


def build(params: tuple[float, float], bounds: tuple[float, float]) -> TanhNormal:
    loc, scale = (torch.tensor([p], dtype=torch.float64) for p in params)
    return TanhNormal(loc, scale, *bounds)


@with_bounds
@with_params
def test_log_prob_is_the_change_of_variables(
    params: tuple[float, float], bounds: tuple[float, float]
) -> None:
    low, high = bounds
    inside = low + (high - low) * np.array([0.001, 0.1, 0.37, 0.5, 0.8, 0.999])
    expected = oracle.tanh_normal_log_density(inside, *params, low, high)
    found = build(params, bounds).log_prob(torch.tensor(inside).unsqueeze(-1))
    torch.testing.assert_close(found.squeeze(-1), torch.tensor(expected), rtol=1e-9, atol=1e-9)


@with_bounds
def test_density_integrates_to_one(bounds: tuple[float, float]) -> None:
    low, high = bounds
    grid = torch.linspace(low, high, 200_001, dtype=torch.float64)[1:-1]
    density = build((0.4, 0.6), bounds).log_prob(grid.unsqueeze(-1)).exp().squeeze(-1)
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-4)


@with_bounds
@with_params
def test_entropy_needs_no_sampling(
    params: tuple[float, float], bounds: tuple[float, float]
) -> None:
    expected = oracle.tanh_normal_entropy(*params, *bounds)
    assert build(params, bounds).entropy().item() == pytest.approx(expected, abs=2e-7)


@pytest.mark.parametrize("scale", [1e-4, 0.01, 20.0, 1e4])
@pytest.mark.parametrize("loc", [-30.0, 0.0, 8.0])
def test_entropy_is_right_and_differentiable_at_extreme_parameters(
    loc: float, scale: float
) -> None:
    values = [torch.tensor([v], requires_grad=True) for v in (loc, scale)]
    entropy = TanhNormal(*values).entropy()
    expected = oracle.tanh_normal_entropy(loc, scale, -1, 1)
    assert entropy.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    entropy.backward()
    assert all(v.grad is not None and v.grad.isfinite() for v in values)


@pytest.mark.parametrize("what", ["log_prob", "entropy", "kl first", "kl second"])
def test_gradcheck(what: str) -> None:
    other = TanhNormal(torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64))
    action = torch.linspace(-0.9, 0.95, 5, dtype=torch.float64)

    def fn(loc: Tensor, scale: Tensor) -> Tensor:
        dist = TanhNormal(loc, scale)
        if what == "log_prob":
            return dist.log_prob(action)
        if what == "entropy":
            return dist.entropy()
        return kl_divergence(dist, other) if what == "kl first" else kl_divergence(other, dist)

    loc = torch.randn(5, dtype=torch.float64).requires_grad_()
    scale = (torch.rand(5, dtype=torch.float64) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(fn, (loc, scale), atol=1e-6)


def test_kl_is_that_of_the_latent_normals() -> None:
    p, q = TanhNormal(torch.tensor([0.3]), 0.5, 0, 4), TanhNormal(torch.tensor([-1.0]), 1.0, 0, 4)
    latent = kl_divergence(Normal(0.3, 0.5), Normal(-1.0, 1.0))
    assert kl_divergence(p, q).item() == pytest.approx(latent.item())
    with pytest.raises(ValueError, match="same bounds"):
        kl_divergence(p, TanhNormal(torch.tensor([-1.0]), 1.0, 0, 5))


def test_draws_follow_the_density() -> None:
    """Kolmogorov-Smirnov; a right sampler exceeds the limit once in 10,000 seeds."""
    draws = 20_000
    dist = TanhNormal(torch.tensor([0.5]), torch.tensor([0.8]), 0.0, 10.0)
    sample = dist.sample((draws,)).squeeze(-1).sort().values.double()
    latent = torch.atanh((sample - 5) / 5)
    cdf = Normal(0.5, 0.8).cdf(latent)
    steps = torch.arange(1, draws + 1) / draws
    gap = torch.maximum((cdf - steps).abs().max(), (cdf - steps + 1 / draws).abs().max())
    assert gap < 2.23 / draws**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loc", [0.0, 2.0, 8.0, -40.0])
def test_a_written_action_scores_the_same_when_it_is_read_back(
    loc: float, dtype: torch.dtype
) -> None:
    dist = TanhNormal(torch.full((1000,), loc), torch.ones(1000), 0.0, 0.3)
    written = dist.sample().to(dtype)
    score = dist.log_prob(written)
    assert score.isfinite().all()
    assert (dist.log_prob(written.clone()) == score).all()
    # the score depends on what was written, not on the latent that was drawn
    assert (score == dist.log_prob(written.to(torch.float32).to(dtype))).all()


def test_scores_and_gradients_at_the_bounds_are_finite() -> None:
    loc = torch.tensor([8.0, -8.0, 0.0], requires_grad=True)
    dist = TanhNormal(loc, torch.ones(3), -1.0, 1.0)
    score = dist.log_prob(torch.tensor([1.0, -1.0, 1.0]))
    assert score.isfinite().all()
    score.sum().backward()
    assert loc.grad is not None
    assert loc.grad.isfinite().all()


def test_centred_loc_is_the_middle_of_asymmetric_bounds() -> None:
    dist = TanhNormal(torch.zeros(1), torch.ones(1), 0.0, 10.0)
    assert dist.mode.item() == dist.deterministic_sample.item() == 5.0


def test_rsample_has_the_gradient_of_the_squashed_draw() -> None:
    loc = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    scale = torch.ones(3, dtype=torch.float64, requires_grad=True)
    draw = TanhNormal(loc, scale, 0.0, 10.0).rsample()
    draw.sum().backward()
    y = ((draw - 5) / 5).detach()
    assert loc.grad is not None
    assert scale.grad is not None
    torch.testing.assert_close(loc.grad, 5 * (1 - y * y))
    torch.testing.assert_close(scale.grad, 5 * (1 - y * y) * torch.atanh(y))


@pytest.mark.parametrize("value", [10.1, -0.001, 1e30])
def test_an_action_outside_the_bounds_is_an_error(value: float) -> None:
    dist = TanhNormal(torch.zeros(2), torch.ones(2), 0.0, 10.0)
    with pytest.raises(ValueError, match=r"'value': .* in row 1 .* is outside of \[0, 10\]"):
        dist.log_prob(torch.tensor([3.0, value]))


def test_entries_with_equal_bounds_are_fixed_and_count_nothing() -> None:
    # grid2op has boxes whose low equals their high
    low, high = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0])
    loc = torch.zeros(4, 2, requires_grad=True)
    dist = TanhNormal(loc, torch.ones(4, 2), low, high)
    draws = dist.sample()
    assert (draws[:, 1] == 2).all()
    for terms in (dist.log_prob(draws), dist.entropy(), kl_divergence(dist, dist)):
        assert (terms[:, 1] == 0).all()
        assert terms.isfinite().all()
    (dist.log_prob(draws) + dist.entropy()).sum().backward()
    assert loc.grad is not None
    assert (loc.grad[:, 1] == 0).all()


def test_bounds_far_from_zero_leave_few_representable_actions() -> None:
    dist = TanhNormal(torch.zeros(10_000), torch.full((10_000,), 3.0), 1000.0, 1001.0)
    draws = dist.sample()
    assert ((draws >= 1000) & (draws <= 1001)).all()
    assert dist.log_prob(draws).isfinite().all()


def test_nan_parameters() -> None:
    with pytest.raises(ValueError, match=r"'logits': nan in row 1"):
        TanhNormal(torch.tensor([0.0, torch.nan]), torch.ones(2))
    quiet = TanhNormal(torch.tensor([0.0, torch.nan]), torch.ones(2), validate_args=False)
    assert quiet.entropy()[1].isnan()
    assert quiet.log_prob(torch.zeros(2))[1].isnan()


def test_shapes_and_expand() -> None:
    dist = TanhNormal(torch.zeros(2, 3), torch.ones(2, 3))
    assert dist.sample((5,)).shape == torch.Size([5, 2, 3])
    assert dist.log_prob(dist.sample((5,))).shape == torch.Size([5, 2, 3])
    wide = dist.expand([7, 2, 3])
    assert wide.entropy().shape == torch.Size([7, 2, 3])
    with pytest.raises(ValueError, match=r"'value': expected shape \[\.\.\., 2, 3\], got \[2, 1\]"):
        dist.log_prob(torch.zeros(2, 1))
