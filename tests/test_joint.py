"""Heads with several leaves against a table of their joint actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import Head
from tdheads.keys import suffixed
from tests.cases import HEADS, HeadCase, case_ids
from tests.joint import JOINTS, Combination, Density, Joint, Row, combinations

B = 3
all_joints = pytest.mark.parametrize("case", JOINTS, ids=case_ids(JOINTS))


def set_up(
    case: HeadCase, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Head, TensorDict]:
    """A head and the parameters and masks that it reads; the masks do not depend on the seed."""
    torch.manual_seed(seed)
    actor = case.actor(dtype, **options)
    head = actor[-1]
    for param in getattr(head, "parameter_modules", nn.ModuleList()).parameters():
        nn.init.normal_(param, std=0.5)
    with torch.no_grad():
        td = actor.get_dist_params(case.inputs([B], seed=3, dtype=dtype))
    return head, td.select(*head.in_keys)


def tables(joint: Joint, head: Head, td: TensorDict) -> list[list[Combination]]:
    return [list(combinations(joint, Row(head, td[row]))) for row in range(B)]


def value_of(combination: Combination, key: Any, inside: np.ndarray) -> Any:
    """A leaf's action: of a continuous one, a point given as a share of its range."""
    local = combination.local[key]
    if not isinstance(local, Density):
        return combination.taken[key]
    if local.bounds is None:
        return local.loc + local.scale * (4 * inside[: len(local.loc)] - 2)
    low, high = local.bounds
    return low + (high - low) * inside[: len(local.loc)]


def actions_of(head: Head, table: list[Combination], inside: np.ndarray) -> Any:
    """The actions of all combinations as they are written: 0 where a leaf is irrelevant."""
    written = {}
    for leaf in head.leaves:
        key, shape = leaf.action_key, tuple(leaf.event_shape)
        values = [value_of(combination, key, inside) for combination in table]
        rows = [np.zeros(shape) if value is None else np.array(value) for value in values]
        dtype = torch.float64 if is_continuous(table, key) else torch.int64
        written[key] = torch.tensor(np.stack(rows), dtype=dtype)
    return TensorDict(written, [len(table)])


@all_joints
def test_log_probs_equal_the_enumeration_and_the_joint_normalises(case: Joint) -> None:
    head, td = set_up(case.case)
    inside = np.array([0.35, 0.8, 0.55])
    rows = tables(case, head, td)
    sample = torch.stack([actions_of(head, table, inside) for table in rows], 1)
    scores = head.get_dist(td).log_prob(sample)
    for row, table in enumerate(rows):
        total = torch.zeros(len(table), dtype=torch.float64)
        for key in case.leaves:
            found = scores[suffixed(key, "_log_prob")][:, row]
            expected = []
            for combination in table:
                local = combination.local[key]
                if isinstance(local, Density):
                    expected.append(local.log_prob(value_of(combination, key, inside)))
                else:
                    p = combination.prob(key)
                    expected.append(math.log(p) if p > 0 else -math.inf)
            torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
            if not is_continuous(table, key):
                total += found
        assert total.exp().sum().item() == pytest.approx(1, abs=1e-12)


def leaf_entropy(table: list[Combination], key: Any) -> float:
    """-E log p of one leaf over the joint table."""
    total = 0.0
    for combination in table:
        weight, local = combination.joint, combination.local[key]
        if weight > 0:
            density = isinstance(local, Density)
            total += weight * (local.entropy() if density else -math.log(combination.prob(key)))
    return total


def joint_entropy(table: list[Combination]) -> float:
    """-E log p of the whole action, without the chain rule for what is discrete."""
    total = 0.0
    for combination in table:
        if (p := combination.joint) > 0:
            continuous = [x for x in combination.local.values() if isinstance(x, Density)]
            total += p * (sum(x.entropy() for x in continuous) - math.log(p))
    return total


@all_joints
def test_entropy_is_that_of_the_enumeration(case: Joint) -> None:
    head, td = set_up(case.case, **case.exact)
    entropy = head.get_dist(td).entropy()
    for row, table in enumerate(tables(case, head, td)):
        found = [entropy[suffixed(key, "_entropy")][row].item() for key in case.leaves]
        # tdheads' series for a squashed normal is good to 1e-6 a dim
        assert found == pytest.approx([leaf_entropy(table, key) for key in case.leaves], abs=4e-6)
        assert sum(found) == pytest.approx(joint_entropy(table), abs=4e-6)


@all_joints
def test_kl_is_that_of_the_enumeration(case: Joint) -> None:
    (old, old_td), (new, new_td) = (set_up(case.case, seed, **case.exact) for seed in (0, 1))
    p, q = old.get_dist(old_td), new.get_dist(new_td)
    kl = p.kl(q)
    pairs = zip(tables(case, old, old_td), tables(case, new, new_td), strict=True)
    for row, (before, after) in enumerate(pairs):
        expected = dict.fromkeys(case.leaves, 0.0)
        joint = 0.0
        for a, b in zip(before, after, strict=True):
            if (weight := a.joint) == 0:
                continue
            joint += weight * math.log(weight / b.joint)
            for key, local in a.local.items():
                if isinstance(local, Density):
                    part = local.kl(b.local[key])
                    joint += weight * part
                else:
                    part = math.log(a.prob(key) / b.prob(key))
                expected[key] += weight * part
        found = {key: kl[suffixed(key, "_kl")][row].item() for key in case.leaves}
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert kl_divergence(p, q)[row].item() == pytest.approx(joint, rel=1e-9)
        assert joint > 1e-3
    assert kl_divergence(p, p).abs().max() < 1e-12


ESTIMATES = [joint for joint in JOINTS if joint.exact]


@pytest.mark.parametrize("case", ESTIMATES, ids=case_ids(ESTIMATES))
def test_without_enumeration_entropy_is_that_at_the_stored_actions(case: Joint) -> None:
    head, td = set_up(case.case)
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        td = head(td)
    entropy = head.get_dist(td).entropy()
    for row in range(B):
        taken: dict[Any, Any] = {}
        for key, leaf in case.leaves.items():
            local = leaf(Row(head, td[row]), taken)
            if isinstance(local, dict):
                expected = -sum(p * math.log(p) for p in local.values() if p > 0)
            else:
                expected = 0.0 if local is None else local.entropy()
            assert entropy[suffixed(key, "_entropy")][row].item() == pytest.approx(expected)
            taken[key] = None if local is None else td[key][row].tolist()


WAYS: list[tuple[HeadCase, dict[str, bool]]] = [
    *((case, {}) for case in HEADS),
    *((joint.case, joint.exact) for joint in ESTIMATES),
]


@pytest.mark.parametrize(
    ("case", "options"), WAYS, ids=[case.name + " exact" * bool(opt) for case, opt in WAYS]
)
@pytest.mark.parametrize("what", ["log_prob", "entropy", "kl first", "kl second"])
def test_gradcheck_under_masks(case: HeadCase, options: dict[str, bool], what: str) -> None:
    head, td = set_up(case, **options)
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        td = head(td)  # what is estimated is so at the stored actions
        other_td = set_up(case, seed=1, **options)[1].update(td.select(*head.dist_sample_keys))
    params = [key for key in head.in_keys if key not in case.constraints]

    def fn(*values: Tensor) -> Tensor:
        dist = head.get_dist(td.copy().update(dict(zip(params, values, strict=True))))
        if what == "log_prob":
            return joint_sum(head.log_prob(td, dist=dist))
        if what == "entropy":
            return joint_sum(dist.entropy())
        other = head.get_dist(other_td)
        return kl_divergence(dist, other) if what == "kl first" else kl_divergence(other, dist)

    inputs = tuple(td[key].clone().requires_grad_() for key in params)
    assert fn(*inputs).isfinite().all()
    assert torch.autograd.gradcheck(fn, inputs)


def joint_sum(figures: Any) -> Tensor:
    """The sum over the leaves, of a tensordict of figures or of the one figure."""
    return figures if isinstance(figures, Tensor) else sum(figures.values(True, True))


@all_joints
def test_a_million_draws_are_legal_and_follow_the_joint(case: Joint) -> None:
    """Chi-square; a right sampler fails once in 10,000 seeds per row and per continuous dim."""
    head, td = set_up(case.case, dtype=torch.float32)
    draws = 1_000_000 // B + 1
    with torch.no_grad():
        sample = head.get_dist(td).sample((draws,))
    for row, table in enumerate(tables(case, head, td)):
        place = places(head, sample[:, row], table)
        check_discrete(place, table)
        for key in case.leaves:
            if is_continuous(table, key):
                check_continuous(key, sample[:, row], table, place)


def is_continuous(table: list[Combination], key: Any) -> bool:
    return any(isinstance(combination.local[key], Density) for combination in table)


def places(head: Head, sample: TensorDict, table: list[Combination]) -> np.ndarray:
    """Which combination each draw is, ``[draws]``; a draw that is none fails."""
    keys = [leaf.action_key for leaf in head.leaves if not is_continuous(table, leaf.action_key)]
    written = actions_of(head, table, np.zeros(3))
    drawn, known = (
        np.concatenate([td[key].reshape(len(td), -1).numpy() for key in keys], -1)
        for td in (sample, written)
    )
    power = (int(max(drawn.max(), known.max())) + 1) ** np.arange(known.shape[1])
    order = np.argsort(known @ power)
    place = order[np.searchsorted((known @ power)[order], drawn @ power).clip(max=len(order) - 1)]
    assert (known[place] == drawn).all()
    return place


def check_discrete(place: np.ndarray, table: list[Combination]) -> None:
    draws = len(place)
    counts = np.bincount(place, minlength=len(table))
    probs = np.array([combination.joint for combination in table])
    assert (counts[probs == 0] == 0).all()
    likely = probs * draws >= 5
    expected, found = probs[likely] * draws, counts[likely]
    rest = draws - expected.sum()
    if rest >= 5:
        expected, found = np.append(expected, rest), np.append(found, counts[~likely].sum())
    assert len(expected) > 1
    assert chi_square(found, expected) <= limit(len(expected) - 1)


def chi_square(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2 / expected).sum())


def limit(freedom: int) -> float:
    """Wilson-Hilferty approximation of the 1 - 1e-4 quantile of chi-square."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3


def check_continuous(
    key: Any, sample: TensorDict, table: list[Combination], place: np.ndarray
) -> None:
    """Given the leaves before it, the normal behind every dim falls evenly into 20 quantiles."""
    actions = sample[key].double().numpy()
    latent = []
    for number, combination in enumerate(table):
        local, chosen = combination.local[key], actions[place == number]
        if isinstance(local, Density):
            latent.append(local.latent(chosen))
        else:
            assert (chosen == 0).all()
    quantile = torch.special.ndtr(torch.tensor(np.concatenate(latent))).numpy()
    for dim in quantile.T:
        found = np.bincount((dim * 20).astype(int).clip(0, 19), minlength=20)
        assert chi_square(found, np.full(20, len(dim) / 20)) <= limit(19)


@all_joints
def test_the_mode_is_legal_and_scores_highest_leaf_by_leaf(case: Joint) -> None:
    head, td = set_up(case.case)
    mode = head.get_dist(td).mode
    for row in range(B):
        taken: dict[Any, Any] = {}
        for key, leaf in case.leaves.items():
            local = leaf(Row(head, td[row]), taken)
            found = mode[key][row]
            if isinstance(local, dict):
                best = max(local, key=lambda value: local[value])
                assert local[best] > 0
                taken[key] = best
                assert found.tolist() == (list(best) if isinstance(best, tuple) else best)
            else:
                taken[key] = None
                assert local is not None or (found == 0).all()
