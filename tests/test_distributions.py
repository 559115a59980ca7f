"""Laws of the finite distributions, against enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from tdheads import MaskedCategorical, MaskedJointCategorical, MaskedMultiCategorical
from tests import oracle
from tests.cases import DISCRETE, MANY, Discrete, Listed, N, case_ids

B = 5
all_cases = pytest.mark.parametrize("case", DISCRETE, ids=case_ids(DISCRETE))
# a list of legal choices is always given, and is a list of integers
MASKED = [case for case in DISCRETE if not isinstance(case, Listed)]
masked_cases = pytest.mark.parametrize("case", MASKED, ids=case_ids(MASKED))


def build(case: Discrete, dtype: torch.dtype = torch.float64) -> tuple[Distribution, Any, Any]:
    logits, mask = case.logits([B], dtype=dtype), case.masks([B])
    return case.build(logits, mask), logits, mask


def values_of(case: Discrete, mask: Tensor, logits: Tensor) -> list[dict[Any, float]]:
    rows = zip(logits.double().numpy(), mask.numpy(), strict=True)
    return [case.probs(*row) for row in rows]


def stack(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    """Values of the support as a tensor [support, 1 row, *event]."""
    return torch.tensor(list(values), dtype=dtype).unsqueeze(1)


@all_cases
def test_log_prob_equals_the_enumeration_and_normalises(case: Discrete) -> None:
    dist, logits, mask = build(case)
    for row, expected in enumerate(values_of(case, mask, logits)):
        values = stack(expected).expand(-1, B, *dist.event_shape)
        probs = dist.log_prob(values)[:, row].exp()
        torch.testing.assert_close(
            probs, torch.tensor(list(expected.values()), dtype=torch.float64)
        )
        assert probs.sum().item() == pytest.approx(1, abs=1e-12)


@all_cases
def test_illegal_choices_have_probability_zero_and_log_prob_minus_inf(case: Discrete) -> None:
    dist, logits, mask = build(case, torch.float32)
    checked = 0
    for row, expected in enumerate(values_of(case, mask, logits)):
        illegal = [value for value, p in expected.items() if p == 0]
        if illegal:
            values = stack(illegal).expand(-1, B, *dist.event_shape)
            assert (dist.log_prob(values)[:, row] == -torch.inf).all()
            checked += len(illegal)
    assert checked > B


@all_cases
def test_entropy_equals_the_enumeration(case: Discrete) -> None:
    dist, logits, mask = build(case)
    for row, expected in enumerate(values_of(case, mask, logits)):
        reference = oracle.entropy(np.array(list(expected.values())))
        assert dist.entropy()[row].item() == pytest.approx(reference, rel=1e-12)


@all_cases
def test_kl_equals_the_enumeration_and_is_zero_for_itself(case: Discrete) -> None:
    p, logits, mask = build(case)
    other = case.logits([B], seed=9, dtype=torch.float64)
    q = case.build(other, mask)
    pairs = zip(values_of(case, mask, logits), values_of(case, mask, other), strict=True)
    for row, (a, b) in enumerate(pairs):
        reference = oracle.kl(np.array(list(a.values())), np.array(list(b.values())))
        assert kl_divergence(p, q)[row].item() == pytest.approx(reference, rel=1e-10)
    assert (kl_divergence(p, p) == 0).all()
    assert (kl_divergence(p, q) > 0).all()


@all_cases
def test_kl_is_infinite_where_the_second_forbids_what_the_first_may_do(case: Discrete) -> None:
    logits = case.logits([B])
    everything, mask = case.everything([B]), case.only_first([B])
    assert (
        kl_divergence(case.build(logits, everything), case.build(logits, mask)) == torch.inf
    ).all()
    assert kl_divergence(case.build(logits, mask), case.build(logits, everything)).isfinite().all()


@all_cases
@pytest.mark.parametrize("what", ["log_prob", "entropy", "kl first", "kl second"])
def test_gradcheck_under_a_mask(case: Discrete, what: str) -> None:
    mask = case.masks([B])
    action = case.build(case.logits([B]), mask).sample()
    other = case.build(case.logits([B], seed=3, dtype=torch.float64), mask)

    def fn(logits: Tensor) -> Tensor:
        dist = case.build(logits, mask)
        if what == "log_prob":
            return dist.log_prob(action)
        if what == "entropy":
            return dist.entropy()
        return kl_divergence(dist, other) if what == "kl first" else kl_divergence(other, dist)

    logits = case.logits([B], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(fn, (logits,))


@all_cases
def test_illegal_choices_get_exactly_zero_gradient(case: Discrete) -> None:
    logits = case.logits([B]).requires_grad_()
    mask = case.masks([B])
    dist = case.build(logits, mask)
    other = case.build(case.logits([B], seed=3), mask)
    total = dist.log_prob(dist.sample()).sum() + dist.entropy().sum()
    total = total + kl_divergence(dist, other).sum() + kl_divergence(other, dist).sum()
    total.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    legal = case.legal(mask)
    assert (logits.grad[~legal] == 0).all()
    assert (logits.grad[legal] != 0).any()


@all_cases
@pytest.mark.parametrize("size", [1e4, -1e4, 3e38])
def test_values_and_gradients_are_finite_for_huge_logits(case: Discrete, size: float) -> None:
    mask = case.masks([B])
    logits = case.logits([B]).sign() * size
    logits.requires_grad_()
    dist = case.build(logits, mask)
    total = dist.log_prob(dist.mode).sum() + dist.entropy().sum()
    if abs(size) < 1e5:  # the difference of two log-probs at 3e38 is not a float32 number
        total = total + kl_divergence(dist, case.build(case.logits([B]), mask)).sum()
        total = total + kl_divergence(case.build(case.logits([B]), mask), dist).sum()
    total.backward()
    assert total.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@all_cases
@pytest.mark.parametrize("gap", [1e9, 1e30])
def test_no_finite_number_stands_in_for_an_illegal_choice(case: Discrete, gap: float) -> None:
    mask = case.only_first([B])
    legal = case.legal(mask)
    # what is illegal scores higher than any usual fill of -1e8, -1e9 or the smallest number
    dist = case.build(torch.where(legal, -gap, gap), mask)
    if case.name != "bits":  # a bit that may be 1 may be 0 too, and here it is
        assert (dist.log_prob(dist.sample((100,))) == 0).all()
    assert (dist.entropy() == 0).all()
    values = dist.enumerate_support()
    assert ((dist.log_prob(values) > -torch.inf).sum(0) == (2 if case.name == "bits" else 1)).all()


@all_cases
def test_mode_is_legal_and_scores_highest(case: Discrete) -> None:
    dist, logits, mask = build(case)
    for row, expected in enumerate(values_of(case, mask, logits)):
        best = max(expected, key=lambda value: expected[value])
        assert dist.mode[row].tolist() == (list(best) if isinstance(best, tuple) else best)
    assert (dist.mode == dist.deterministic_sample).all()
    assert (case.build(torch.zeros(B, case.width), mask).log_prob(dist.mode) > -torch.inf).all()


@all_cases
def test_a_million_draws_are_all_legal_even_with_negative_logits(case: Discrete) -> None:
    # one legal choice in few, all with low logits: where multiplying by a mask fails
    dist = case.build(torch.full((1, case.width), -50.0), case.only_first([1]))
    draws = dist.sample((1_000_000,))
    assert (draws == dist.mode).all()


@all_cases
def test_draws_follow_the_probabilities(case: Discrete) -> None:
    """Chi-square goodness of fit; a right sampler fails this once in 10,000 seeds per row."""
    dist, logits, mask = build(case)
    draws = 20_000
    sample = dist.sample((draws,))
    for row, expected in enumerate(values_of(case, mask, logits)):
        found = sample[:, row].reshape(draws, -1)
        counts: dict[Any, int] = {}
        for value, count in zip(*found.unique(dim=0, return_counts=True), strict=True):
            key = tuple(value.tolist()) if dist.event_shape else value.item()
            counts[key] = int(count)
        likely = {value: p for value, p in expected.items() if p * draws >= 5}
        rare = 1 - sum(likely.values())
        chi = sum((counts.get(v, 0) - p * draws) ** 2 / (p * draws) for v, p in likely.items())
        if rare * draws >= 5:
            seen = draws - sum(counts.get(v, 0) for v in likely)
            chi += (seen - rare * draws) ** 2 / (rare * draws)
        bins = len(likely) + (rare * draws >= 5) - 1
        # Wilson-Hilferty approximation of the 1 - 1e-4 quantile of chi-square
        limit = bins * (1 - 2 / (9 * bins) + 3.719 * (2 / (9 * bins)) ** 0.5) ** 3 if bins else 1e-9
        assert chi <= limit


@all_cases
@pytest.mark.parametrize("batch", [[], [2], [2, 3], [2, 3, 5], [2, 1, 3, 2]], ids=str)
def test_shapes_for_every_number_of_batch_dims(case: Discrete, batch: list[int]) -> None:
    dist = case.build(case.logits(batch), case.masks(batch))
    assert dist.batch_shape == torch.Size(batch)
    assert dist.sample().shape == torch.Size(batch) + dist.event_shape
    assert dist.entropy().shape == torch.Size(batch)


@all_cases
@pytest.mark.parametrize("batch", [[], [2], [2, 3, 5]], ids=str)
def test_samples_with_leading_sample_dims_are_scored_one_by_one(
    case: Discrete, batch: list[int]
) -> None:
    dist = case.build(case.logits(batch), case.masks(batch))
    draws = dist.sample((4, 1))
    assert draws.shape == torch.Size([4, 1, *batch]) + dist.event_shape
    found = dist.log_prob(draws)
    assert found.shape == torch.Size([4, 1, *batch])
    for number in range(4):
        torch.testing.assert_close(dist.log_prob(draws[number, 0]), found[number, 0])


@all_cases
def test_expand_is_the_same_distribution(case: Discrete) -> None:
    dist, _, _ = build(case)
    wide = dist.expand([3, B])
    assert wide.batch_shape == torch.Size([3, B])
    torch.testing.assert_close(wide.entropy(), dist.entropy().expand(3, B))
    value = wide.sample()
    torch.testing.assert_close(wide.log_prob(value)[1], dist.log_prob(value[1]))


@masked_cases
def test_without_a_mask_everything_is_legal(case: Discrete) -> None:
    logits = case.logits([B])
    full = case.build(logits, case.everything([B])).entropy()
    torch.testing.assert_close(case.build(logits).entropy(), full, rtol=0, atol=0)


@masked_cases
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float32])
def test_masks_of_numbers_equal_bool_masks(case: Discrete, dtype: torch.dtype) -> None:
    dist, logits, mask = build(case)
    same = case.build(logits, mask.to(dtype))
    assert (same.probs == dist.probs).all()


@all_cases
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_are_computed_in_float32(case: Discrete, dtype: torch.dtype) -> None:
    logits, mask = case.logits([B]).to(dtype), case.masks([B])
    dist, exact = case.build(logits, mask), case.build(logits.float(), mask)
    value = exact.sample()
    assert dist.log_prob(value).dtype == torch.float32
    assert (dist.log_prob(value) == exact.log_prob(value)).all()
    assert (dist.entropy() == exact.entropy()).all()


@all_cases
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8])
def test_stored_actions_of_every_integer_dtype_score_the_same(
    case: Discrete, dtype: torch.dtype
) -> None:
    dist, _, _ = build(case)
    value = dist.sample()
    assert (dist.log_prob(value.to(dtype)) == dist.log_prob(value)).all()


@all_cases
def test_enumerate_support_lists_every_value_once(case: Discrete) -> None:
    dist, logits, mask = build(case)
    values = dist.enumerate_support()
    expected = values_of(case, mask, logits)[0]
    found = [tuple(row) for row in values[:, 0].reshape(len(values), -1).tolist()]
    assert sorted(found) == sorted(v if isinstance(v, tuple) else (v,) for v in expected)
    total = dist.log_prob(values).exp().sum(0)
    torch.testing.assert_close(total, torch.ones(B, dtype=torch.float64))
    assert dist.enumerate_support(expand=False).shape == torch.Size(
        [len(values), 1, *dist.event_shape]
    )


@all_cases
def test_zero_rows_are_a_batch_like_any_other(case: Discrete) -> None:
    dist = case.build(case.logits([0]), case.masks([0]))
    assert dist.sample().shape == torch.Size([0]) + dist.event_shape
    assert dist.log_prob(dist.sample()).shape == torch.Size([0])
    assert dist.entropy().shape == torch.Size([0])


def test_unequal_dimensions_take_a_flat_mask_or_a_padded_one() -> None:
    nvec = [3, 2, 5]
    logits = torch.randn(B, 10, dtype=torch.float64)
    padded = torch.rand(B, 3, 5) < 0.5
    padded[..., 0] = True
    flat = torch.cat([padded[:, d, :n] for d, n in enumerate(nvec)], -1)
    dists = [MaskedMultiCategorical(logits, nvec, mask) for mask in (flat, padded)]
    for value in itertools.product(*map(range, nvec)):
        expected = torch.ones(B, dtype=torch.float64)
        for option, part, legal in zip(
            value, logits.split(nvec, -1), flat.split(nvec, -1), strict=True
        ):
            weights = torch.where(legal, part.exp(), 0)
            expected *= weights[:, option] / weights.sum(-1)
        for dist in dists:
            found = dist.log_prob(torch.tensor(value).expand(B, 3)).exp()
            torch.testing.assert_close(found, expected)


# ---- nothing to choose


def empty_rows(case: Discrete) -> tuple[Tensor, Tensor]:
    return case.logits([B]), case.nothing(case.masks([B]), 1)


@all_cases
def test_a_row_without_a_legal_choice_is_an_error_by_default(case: Discrete) -> None:
    with pytest.raises(ValueError, match=r"'mask': no (legal choice|bit may be 1) in rows? .*1"):
        case.build(*empty_rows(case))


def zeroth(values: dict[Any, float]) -> tuple[int, ...]:
    """Choice 0 of every dimension, in the form of the case."""
    first = next(iter(values))
    return first if isinstance(first, tuple) else (first,)


@all_cases
def test_neutral_rows_take_action_0_and_count_nothing(case: Discrete) -> None:
    logits, mask = empty_rows(case)
    logits.requires_grad_()
    dist = case.build(logits, mask, on_empty="neutral")
    nothing = case.probs(np.zeros(case.width), np.zeros(case.mask_shape, dtype=bool))
    for action in (dist.sample(), dist.mode):
        assert tuple(action[1].reshape(-1).tolist()) == zeroth(nothing)
    assert dist.log_prob(dist.sample())[1] == 0
    assert dist.entropy()[1] == 0
    other = case.build(case.logits([B], seed=4), mask, on_empty="neutral")
    assert kl_divergence(dist, other)[1] == 0
    assert dist.empty.tolist() == [False, True, False, False, False]
    total = dist.log_prob(dist.sample()).sum() + dist.entropy().sum()
    (total + kl_divergence(dist, other).sum() + kl_divergence(other, dist).sum()).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert (logits.grad[1] == 0).all()


@all_cases
def test_neutral_rows_hide_garbage_logits_with_checks_off(case: Discrete) -> None:
    logits, mask = empty_rows(case)
    logits[1] = torch.nan
    logits.requires_grad_()
    dist = case.build(logits, mask, on_empty="neutral", validate_args=False)
    (dist.log_prob(dist.sample()).sum() + dist.entropy().sum()).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


# ---- what a user does wrong


@all_cases
def test_nan_logits_are_an_error_that_names_the_rows(case: Discrete) -> None:
    logits = case.logits([B])
    logits[3, 2] = torch.nan
    with pytest.raises(ValueError, match=r"'logits': nan in row 3 \(1 of 5\)"):
        case.build(logits, case.masks([B]))


@all_cases
def test_nan_logits_stay_nan_with_checks_off(case: Discrete) -> None:
    logits = case.logits([B])
    logits[3] = torch.nan
    dist = case.build(logits, case.masks([B]), validate_args=False)
    assert dist.entropy()[3].isnan()
    assert dist.log_prob(dist.mode)[3].isnan()
    assert dist.entropy()[:3].isfinite().all()


@all_cases
def test_a_mask_that_would_have_to_be_broadcast_is_an_error(case: Discrete) -> None:
    logits = case.logits([case.width])
    full = case.everything([case.width])
    assert case.build(logits, full).batch_shape == torch.Size([case.width])
    for mask in (full[0], full[:1], full[..., :1], full.unsqueeze(1)):
        with pytest.raises(ValueError, match=r"'mask': expected shape .*got"):
            case.build(logits, mask)


@all_cases
def test_an_additive_mask_is_an_error(case: Discrete) -> None:
    mask = torch.zeros(B, *case.mask_shape)
    mask[..., 1:] = -torch.inf
    message = "'mask': expected (1 where a choice is legal|a tensor of integers)"
    with pytest.raises((TypeError, ValueError), match=message):
        case.build(case.logits([B]), mask)


@all_cases
def test_an_action_with_a_stray_dim_is_an_error(case: Discrete) -> None:
    dist, _, _ = build(case)
    with pytest.raises(ValueError, match=r"'value': expected shape .*got"):
        dist.log_prob(dist.sample().unsqueeze(-1))


@all_cases
def test_a_choice_beyond_the_last_one_is_refused_or_impossible(case: Discrete) -> None:
    dist, _, _ = build(case)
    value = dist.sample()
    value.view(B, -1)[2, -1] = max(case.width, MANY) + 1
    if case.name == "joint":  # the options of a combination are checked one by one
        assert dist.log_prob(value)[2] == -torch.inf
        return
    with pytest.raises(ValueError, match=r"'value': .*(is not one of 0 to|expected one-hot|zeros)"):
        dist.log_prob(value)


def test_thirty_thousand_choices() -> None:
    logits = (torch.randn(2, 30_000) * 10).requires_grad_()
    mask = torch.rand(2, 30_000) < 0.01
    dist = MaskedCategorical(logits, mask)
    reference = [
        oracle.masked_probs(z, m)
        for z, m in zip(logits.detach().numpy(), mask.numpy(), strict=True)
    ]
    for row, probs in enumerate(reference):
        assert dist.entropy()[row].item() == pytest.approx(oracle.entropy(probs), rel=1e-4)
    assert mask.gather(-1, dist.sample((100,)).T).all()
    dist.entropy().sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_random_large_logits_never_fail_a_simplex_check() -> None:
    # 600 choices in float32: the rounding of a sum of probabilities is beyond 1e-6 here and there
    for seed in range(200):
        gen = torch.Generator().manual_seed(seed)
        logits = torch.randn(8, 600, generator=gen) * 20
        MaskedCategorical(logits, torch.rand(8, 600, generator=gen) < 0.5).sample()


def test_probs_instead_of_logits_give_finite_gradients_for_legal_choices() -> None:
    probs = torch.tensor([[0.2, 0.0, 0.5, 0.3]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False, True]])

    def fn(p: Tensor) -> Tensor:
        dist = MaskedCategorical(probs=p, mask=mask)
        return dist.log_prob(torch.tensor([3])) + dist.entropy()

    fn(probs).sum().backward()
    grad = probs.grad
    assert grad is not None
    assert grad.isfinite().all()
    step, numeric = 1e-6, []
    for i in (0, 3):
        moved = probs.detach().clone()
        moved[0, i] += step
        low = probs.detach().clone()
        low[0, i] -= step
        numeric.append((fn(moved) - fn(low)).item() / (2 * step))
    assert grad[0, [0, 3]].tolist() == pytest.approx(numeric, rel=1e-6)
    assert MaskedCategorical(probs=probs.detach(), mask=mask).probs.tolist()[0] == pytest.approx(
        [0.4, 0, 0, 0.6]
    )


def test_infinite_logits() -> None:
    own_mask = torch.tensor([[0.0, -torch.inf, 0.0]], requires_grad=True)
    dist = MaskedCategorical(own_mask)
    assert dist.probs.tolist() == [[0.5, 0.0, 0.5]]
    assert dist.entropy().item() == pytest.approx(np.log(2))
    dist.entropy().backward()
    assert own_mask.grad is not None
    assert own_mask.grad.isfinite().all()
    with pytest.raises(ValueError, match=r"no finite distribution in row 0"):
        MaskedCategorical(torch.tensor([[0.0, torch.inf]]))


def test_enumerate_support() -> None:
    dist = MaskedCategorical(torch.zeros(2, 3, N))
    values = dist.enumerate_support()
    assert values.shape == torch.Size([N, 2, 3])
    torch.testing.assert_close(dist.log_prob(values).exp().sum(0), torch.ones(2, 3))
    assert dist.enumerate_support(expand=False).shape == torch.Size([N, 1, 1])


def test_dimensions_of_one_option_and_equal_dimensions() -> None:
    # RubiksCube has nvec [6, 1, 3]; equal sizes take another path through the packing
    for nvec in ([6, 1, 3], [4, 4, 4], [1]):
        logits = torch.randn(3, sum(nvec), dtype=torch.float64)
        dist = MaskedMultiCategorical(logits, nvec)
        total = sum(
            dist.log_prob(torch.tensor(v).expand(3, len(nvec))).exp()
            for v in itertools.product(*map(range, nvec))
        )
        torch.testing.assert_close(total, torch.ones(3, dtype=torch.float64))


def test_an_option_beyond_its_dimension_never_aliases_another_combination() -> None:
    dist = MaskedJointCategorical(torch.zeros(1, 6), [2, 3])
    assert dist.log_prob(torch.tensor([[0, 3]])) == -torch.inf  # 0 * 3 + 3 is the index of (1, 0)
    assert dist.log_prob(torch.tensor([[-1, 3]])) == -torch.inf


@pytest.mark.parametrize("debug", [True, False])
def test_checks_do_not_depend_on_torchs_global_validation_flag(debug: bool) -> None:
    before = Distribution._validate_args
    try:
        Distribution.set_default_validate_args(debug)
        with pytest.raises(ValueError, match="no legal choice"):
            MaskedCategorical(torch.zeros(1, 2), torch.zeros(1, 2))
        assert Distribution._validate_args == debug
    finally:
        Distribution.set_default_validate_args(before)
