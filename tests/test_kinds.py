"""What distributions of different kinds have to do with each other: KL, supports, probs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    OneHotCategorical,
    kl_divergence,
)

from tdheads import (
    CategoricalHead,
    CompositeHead,
    MaskedBernoulli,
    MaskedCategorical,
    MaskedJointCategorical,
    MaskedMultiCategorical,
    MaskedMultiOneHot,
    MaskedOneHotCategorical,
    MultiCategoricalHead,
    NormalHead,
    OneHotCategoricalHead,
    SparseCategorical,
)
from tdheads.distributions import BoxNormal, legal_index
from tdheads.distributions.box_normal import Sides
from tdheads.distributions.shifted import ShiftedLeaf
from tests.cases import DISCRETE, NVEC, Discrete, N, case_ids

B = 5
PACKED = sum(NVEC)


def scores(width: int, seed: int = 0) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(B, width, generator=gen, dtype=torch.float64)


def mask_of(width: int, seed: int = 0) -> Tensor:
    mask = torch.rand(B, width, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[:, 0] = True
    return mask


def enumerated_kl(p: Distribution, q: Distribution, values: Tensor) -> Tensor:
    """sum_a p(a) log p(a) / q(a) over ``values``, ``[n, B, *event]``, each of which has p > 0."""
    log_p, log_q = p.log_prob(values), q.log_prob(values)
    terms = log_p.exp() * (log_p - log_q)
    return torch.where(log_p == -torch.inf, 0, terms).sum(0)


# ---- KL between kinds


def sparse(logits: Tensor, mask: Tensor) -> SparseCategorical:
    index = legal_index(mask, 6).flip(-1)
    return SparseCategorical(logits.gather(-1, index.clamp_min(0)), index, N)


def dense(logits: Tensor, mask: Tensor) -> MaskedCategorical:
    return MaskedCategorical(logits, mask)


def plain(logits: Tensor, mask: Tensor) -> Categorical:
    return Categorical(logits=logits.masked_fill(~mask, -torch.inf))


def weighed(logits: Tensor, mask: Tensor) -> Categorical:
    return Categorical(probs=logits.exp() * mask)


def one_hot(logits: Tensor, mask: Tensor) -> MaskedOneHotCategorical:
    return MaskedOneHotCategorical(logits, mask)


def plain_one_hot(logits: Tensor, mask: Tensor) -> OneHotCategorical:
    return OneHotCategorical(logits=logits.masked_fill(~mask, -torch.inf))


def bits(logits: Tensor, mask: Tensor) -> MaskedBernoulli:
    return MaskedBernoulli(logits, mask)


def plain_bits(logits: Tensor, mask: Tensor) -> Independent:
    return Independent(Bernoulli(logits=logits), 1)


PAIRS = [
    (sparse, dense),
    (sparse, plain),
    (dense, plain),
    (dense, weighed),
    (one_hot, plain_one_hot),
]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("kinds", PAIRS, ids=lambda pair: f"{pair[0].__name__}-{pair[1].__name__}")
def test_kl_of_two_kinds_equals_the_enumeration(
    kinds: tuple[Callable[..., Distribution], ...], swap: bool
) -> None:
    mask = mask_of(N)
    p, q = kinds[0](scores(N, 1), mask), kinds[1](scores(N, 2), mask)
    p, q = (q, p) if swap else (p, q)
    reference = [MaskedCategorical(scores(N, seed), mask) for seed in ((2, 1) if swap else (1, 2))]
    expected = (reference[0].probs * (reference[0].logits - reference[1].logits)).nansum(-1)
    torch.testing.assert_close(kl_divergence(p, q), expected)
    wider = kinds[0](scores(N, 1), mask.new_ones(B, N) if kinds[0] is not sparse else mask)
    if kinds[0] is not sparse:  # the second forbids what the first may do
        assert (kl_divergence(wider, kinds[1](scores(N, 2), mask)) == torch.inf).all()


@pytest.mark.parametrize("swap", [False, True])
def test_kl_of_a_list_and_a_mask_that_allow_different_choices(swap: bool) -> None:
    few, many = mask_of(N, 3), mask_of(N, 3)
    many[:, -2:] = True
    few[:, -2:] = False
    if swap:  # q lists fewer than p allows
        p: Any = dense(scores(N, 1), many)
        assert (kl_divergence(p, sparse(scores(N, 2), few)) == torch.inf).all()
    else:
        p, q = sparse(scores(N, 1), few), dense(scores(N, 2), many)
        expected = kl_divergence(dense(scores(N, 1), few), q)
        torch.testing.assert_close(kl_divergence(p, q), expected)


def test_kl_of_a_list_with_a_row_that_has_nothing_to_choose() -> None:
    mask = mask_of(N)
    mask[2] = False
    index = legal_index(mask, 6)
    listed = SparseCategorical(scores(6, 1), index, N, on_empty="neutral")
    full = MaskedCategorical(scores(N, 2), mask, on_empty="neutral")
    for p, q in ((listed, full), (full, listed)):
        kl = kl_divergence(p, q)
        assert kl[2] == 0
        assert kl.isfinite().all()
        assert (kl[[0, 1, 3, 4]] > 0).all()


def test_kl_of_masked_and_plain_bits_equals_the_enumeration() -> None:
    mask = mask_of(N)
    p, q = bits(scores(N, 1), mask), plain_bits(scores(N, 2), mask)
    values = p.enumerate_support().double()
    torch.testing.assert_close(kl_divergence(p, q), enumerated_kl(p, q, values))
    assert (kl_divergence(q, p)[~mask.all(-1)] == torch.inf).all()
    with pytest.raises(NotImplementedError, match="Independent"):
        kl_divergence(p, Independent(torch.distributions.Normal(torch.zeros(B, N), 1.0), 1))


@pytest.mark.parametrize("swap", [False, True])
def test_kl_of_joint_and_factored_choices_equals_the_enumeration(swap: bool) -> None:
    size = 30
    joint: Any = MaskedJointCategorical(scores(size), NVEC)
    flat = torch.ones(B, PACKED, dtype=torch.bool)
    flat[:, 1] = not swap  # an option that the first distribution of the pair may not take
    factored = MaskedMultiCategorical(scores(PACKED, 1), NVEC, flat)
    p, q = (factored, joint) if swap else (joint, factored)
    torch.testing.assert_close(kl_divergence(p, q), enumerated_kl(p, q, joint.enumerate_support()))


def test_gradients_of_kl_between_kinds_are_finite() -> None:
    mask = mask_of(N)
    for kinds in PAIRS:
        for swap in (False, True):
            a, b = scores(N, 1).requires_grad_(), scores(N, 2).requires_grad_()
            p, q = kinds[0](a, mask), kinds[1](b, mask)
            kl_divergence(*((q, p) if swap else (p, q))).sum().backward()
            for leaf in (a, b):
                assert leaf.grad is not None
                assert leaf.grad.isfinite().all()
                assert (leaf.grad != 0).any()


def test_kl_of_choices_that_start_elsewhere_is_an_error() -> None:
    base = MaskedCategorical(scores(N))
    low, same, high = (ShiftedLeaf(base, torch.tensor(k)) for k in (2, 2, 3))
    assert (kl_divergence(low, same) == 0).all()
    with pytest.raises(ValueError, match="start at the same values, got 2 and 3"):
        kl_divergence(low, high)


# ---- supports


@pytest.mark.parametrize("case", DISCRETE, ids=case_ids(DISCRETE))
def test_support_is_what_is_enumerated_and_nothing_else(case: Discrete) -> None:
    dist = case.build(case.logits([B]), case.masks([B]))
    values = dist.enumerate_support()
    support: Any = dist.support
    assert support.check(values).shape == values.shape[: values.ndim - support.event_dim]
    assert support.check(values).all()
    assert not support.check(values + len(values)).any()
    assert not support.check(values - 1).all()
    assert not support.check(values + 0.5).any()
    assert support.is_discrete


def test_supports_of_unequal_dimensions_are_not_the_widest_one() -> None:
    dist: Any = MaskedMultiCategorical(scores(PACKED), NVEC)  # [3, 2, 5]
    assert dist.support.check(torch.tensor([[2, 1, 4], [1, 2, 1]])).tolist() == [True, False]
    joint: Any = MaskedJointCategorical(scores(30), NVEC)
    assert joint.support.check(torch.tensor([[2, 1, 4], [1, 2, 1]])).tolist() == [True, False]
    hot: Any = MaskedMultiOneHot(scores(5), [2, 3])
    rows = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 1, 0, 1], [1, 0, 1, 1, 0]])
    assert hot.support.check(rows).tolist() == [True, False, False]
    shifted: Any = ShiftedLeaf(MaskedCategorical(scores(N)), torch.tensor(-3))
    assert shifted.support.check(torch.tensor([-4, -3, 3, 4])).tolist() == [
        False,
        True,
        True,
        False,
    ]
    assert shifted.enumerate_support(expand=False).flatten().tolist() == list(range(-3, 4))


def test_support_of_a_composite_asks_every_leaf() -> None:
    head = CompositeHead(CategoricalHead("kind", 3), NormalHead("force", (2,)))
    td = head.projection(8)(TensorDict({"hidden": torch.randn(4, 8)}, [4]))
    dist: Any = head.get_dist(td)
    action = dist.sample()
    assert dist.support.check(action).tolist() == [True] * 4
    action["kind"][2] = 3
    assert dist.support.check(action).tolist() == [True, True, False, True]
    assert not dist.support.is_discrete
    assert not dist.has_enumerate_support


# ---- all joint actions


def test_enumerated_joint_actions_sum_to_one() -> None:
    head = CompositeHead(
        OneHotCategoricalHead("kind", 3, mask=True), MultiCategoricalHead("items", [2, 3])
    )
    td = TensorDict({"hidden": torch.randn(4, 2, 8), "kind_mask": mask_of(3)[:4, None]}, [4])
    td["kind_mask"] = td["kind_mask"].expand(4, 2, 3)
    dist: Any = head.get_dist(head.projection(8)(td))
    values = dist.enumerate_support()
    assert values.batch_size == torch.Size([18, 4])
    total = sum(dist.log_prob(values).values()).exp().sum(0)
    torch.testing.assert_close(total, torch.ones(4, 2))
    assert dist.enumerate_support(expand=False)["items"].shape == torch.Size([18, 1, 1, 2])


def test_enumerated_dependent_actions_sum_to_one_and_hold_no_action_twice() -> None:
    head = CompositeHead(
        CategoricalHead("kind", 3),
        CategoricalHead("item", 4, when={"kind": [1, 2]}, start=5),
        OneHotCategoricalHead("how", 2, when={"kind": [0, 2]}, after=("kind",)),
        num_features=8,
    )
    td = TensorDict({"hidden": torch.randn(4, 8)}, [4])
    dist: Any = head.get_dist(head.projection(8)(td))
    values = dist.enumerate_support()
    # kind 0: how; kind 1: item; kind 2: both
    assert values.batch_size == torch.Size([2 + 4 + 8, 4])
    rows = torch.cat([values["kind"][:, :1], values["item"][:, :1], values["how"][:, 0]], -1)
    assert len(rows.unique(dim=0)) == 14
    total = sum(dist.log_prob(values).values()).exp().sum(0)
    torch.testing.assert_close(total, torch.ones(4))


def test_actions_without_end_are_not_enumerated() -> None:
    head = CompositeHead(CategoricalHead("kind", 3), NormalHead("force", (2,), when={"kind": 1}))
    td = head.projection(8)(TensorDict({"hidden": torch.randn(4, 8)}, [4]))
    with pytest.raises(NotImplementedError, match=r"'force'.*infinitely many"):
        head.get_dist(td).enumerate_support()


# ---- probs instead of logits

PROBS = [case for case in DISCRETE if case.name not in ("bits", "sparse", "sparse-copied")]


@pytest.mark.parametrize("case", PROBS, ids=case_ids(PROBS))
def test_probs_equal_logits(case: Discrete) -> None:
    logits, mask = case.logits([B], dtype=torch.float64), case.masks([B])
    given = case.build(logits, mask)
    weights = case.build(None, mask=mask, probs=3 * logits.exp())
    torch.testing.assert_close(weights.probs, given.probs)
    with pytest.raises(ValueError, match="give either logits or probs"):
        case.build(None)
    with pytest.raises(ValueError, match="give either logits or probs"):
        case.build(logits, probs=logits.exp())


def test_probs_of_bits_equal_logits_and_certain_bits_are_exact() -> None:
    logits = scores(N)
    probs = logits.sigmoid()
    torch.testing.assert_close(
        MaskedBernoulli(probs=probs).entropy(), MaskedBernoulli(logits).entropy()
    )
    sure = torch.tensor([[0.0, 1.0, 0.25]], dtype=torch.float64, requires_grad=True)
    dist = MaskedBernoulli(probs=sure)
    assert dist.probs.tolist()[0] == pytest.approx([0, 1, 0.25])
    assert dist.log_prob(torch.tensor([[0, 1, 1]])).item() == pytest.approx(-1.3862943611198906)
    assert dist.log_prob(torch.tensor([[1, 1, 1]])) == -torch.inf
    assert dist.log_prob(torch.tensor([[0, 0, 1]])) == -torch.inf
    assert (dist.sample((100,))[..., :2] == torch.tensor([0, 1])).all()
    other = MaskedBernoulli(probs=torch.tensor([[0.5, 0.5, 0.5]], dtype=torch.float64))
    # log 2 for each certain bit, and 1/4 log(1/2) + 3/4 log(3/2) for the third
    expected = 2 * 0.6931471805599453 + 0.25 * -0.6931471805599453 + 0.75 * 0.4054651081081644
    assert kl_divergence(dist, other).item() == pytest.approx(expected)
    assert kl_divergence(other, dist) == torch.inf
    (dist.entropy() + dist.log_prob(torch.tensor([[0, 1, 1]]))).sum().backward()
    assert sure.grad is not None
    assert sure.grad.isfinite().all()
    with pytest.raises(ValueError, match=r"'logits'.*row 0.*from 0 to 1"):
        MaskedBernoulli(probs=torch.tensor([[1.5]]))


def test_infinite_log_odds_are_certain_bits() -> None:
    logits = torch.tensor([[torch.inf, -torch.inf, 0.0]], requires_grad=True)
    dist = MaskedBernoulli(logits)
    assert dist.entropy().item() == pytest.approx(0.6931471805599453)
    assert kl_divergence(dist, dist) == 0
    (dist.entropy() + dist.log_prob(dist.mode) + kl_divergence(dist, dist)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_the_log_odds_of_bits_keep_float64() -> None:
    """torch's softplus is cut off at 20, where its error is still 2e-9."""
    z = torch.tensor([[20.5]], dtype=torch.float64)
    score = MaskedBernoulli(z).log_prob(torch.tensor([[1]])).item()
    assert score == pytest.approx(-math.log1p(math.exp(-20.5)), rel=1e-12, abs=0)


# ---- nothing is broadcast, nothing is rounded

UNLIKE: dict[str, tuple[Distribution, Distribution]] = {
    "categorical": (MaskedCategorical(scores(3)), MaskedCategorical(scores(1))),
    "one-hot": (MaskedOneHotCategorical(scores(3)), MaskedOneHotCategorical(scores(1))),
    "bits": (MaskedBernoulli(scores(3)), MaskedBernoulli(scores(1))),
    "multi": (MaskedMultiCategorical(scores(5), [2, 3]), MaskedMultiCategorical(scores(5), [3, 2])),
    "multi-one-hot": (MaskedMultiOneHot(scores(5), [2, 3]), MaskedMultiOneHot(scores(5), [3, 2])),
    "joint": (MaskedJointCategorical(scores(6), [2, 3]), MaskedJointCategorical(scores(6), [3, 2])),
    "factored and joint": (
        MaskedMultiCategorical(scores(5), [2, 3]),
        MaskedJointCategorical(scores(6), [3, 2]),
    ),
    "list": (
        SparseCategorical(scores(2), torch.tensor([[0, 1]]).expand(B, 2), 2),
        SparseCategorical(scores(2), torch.tensor([[0, 1]]).expand(B, 2), 9),
    ),
    "list and mask": (
        SparseCategorical(scores(2), torch.tensor([[0, 1]]).expand(B, 2), 9),
        MaskedCategorical(scores(2)),
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_kl_of_other_choices_is_an_error(name: str) -> None:
    p, q = UNLIKE[name]
    for pair in ((p, q), (q, p)):
        with pytest.raises(ValueError, match=r"KL: expected the same choices on both sides, got"):
            kl_divergence(*pair)
    assert (kl_divergence(p, p) == 0).all()


def test_numbers_between_two_choices_are_refused() -> None:
    shifted = ShiftedLeaf(MaskedCategorical(scores(3)), torch.tensor(5))
    joint = MaskedJointCategorical(scores(4), [2, 2])
    for dist, value in ((shifted, torch.full((B,), 5.7)), (joint, torch.full((B, 2), 0.5))):
        with pytest.raises(ValueError, match=r"'value': expected integers, got (5.7|0.5) in rows"):
            dist.log_prob(value)
    with pytest.raises(ValueError, match="'value': expected integers, got nan"):
        shifted.log_prob(torch.full((B,), torch.nan))


def test_support_of_a_box_is_inside_its_bounds() -> None:
    sides = Sides(torch.tensor([0.0, 0.0, -torch.inf]), torch.tensor([1.0, torch.inf, torch.inf]))
    support: Any = BoxNormal(torch.zeros(3), torch.ones(3), sides).support
    found = support.check(torch.tensor([[0.5, 7.0, -7.0], [1.5, -1.0, 0.0]]))
    assert found.tolist() == [[True, True, True], [False, False, True]]


def test_agents_that_start_at_different_numbers_are_enumerated_for_each() -> None:
    dist = ShiftedLeaf(MaskedCategorical(scores(3)[:2]), torch.tensor([0, 10]))
    assert dist.enumerate_support().tolist() == [[0, 10], [1, 11], [2, 12]]
    with pytest.raises(NotImplementedError, match="expand=True"):
        dist.enumerate_support(expand=False)


def test_probs_that_are_none_are_named_as_probs() -> None:
    for row in ([0.5, -0.2, 0.7], [0.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match="a row of probs needs a positive one"):
            MaskedCategorical(probs=torch.tensor([row]))
    with pytest.raises(ValueError, match=r"expected shape .* got"):
        MaskedCategorical(torch.zeros(2, 0))
