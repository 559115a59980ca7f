"""Leaves that depend on each other, against enumeration of the joint action space."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import SoftUpdate

from tdheads import (
    BernoulliHead,
    BetaHead,
    BoxNormalHead,
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    Head,
    KLPENPPOLoss,
    MultiCategoricalHead,
    NormalHead,
    OneHotCategoricalHead,
    TanhNormalHead,
    make_actor,
)
from tests import oracle
from tests.batches import TERMS, check_finite_differences, collect, gradients, move
from tests.cases import FEATURES, HEADS, LOSSES, HeadCase, LossCase, case_ids, critic

B, KINDS, TARGETS, TOOLS = 5, 3, 4, 2
RELEVANT_KINDS, RELEVANT_TARGETS = (1, 2), (0, 3)


class Table(nn.Module):
    """Logits of the tool for every kind and target: a parameter module that an oracle can read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(KINDS, TARGETS, TOOLS, dtype=torch.float64) * 2)

    def forward(self, kind: Tensor, target: Tensor) -> Tensor:
        return self.rows[kind, target]


def chain(
    enumerate_parents: bool = True, table: Table | None = None, on_empty: str = "error"
) -> CompositeHead:
    """kind -> target (mask given the kind, for some kinds) -> tool (after both, some targets)."""
    module = TensorDictModule(table or Table(), ["kind", "target"], ["tool_logits"])
    return CompositeHead(
        CategoricalHead("kind", KINDS, mask=True),
        CategoricalHead(
            "target",
            TARGETS,
            mask=True,
            mask_given="kind",
            when={"kind": RELEVANT_KINDS},
            on_empty=on_empty,
        ),
        CategoricalHead(
            "tool",
            TOOLS,
            when={"target": RELEVANT_TARGETS},
            after=("kind", "target"),
            enumerate_parents=enumerate_parents,
            parameters=module,
        ),
    )


def chain_inputs(seed: int = 0) -> TensorDict:
    gen = torch.Generator().manual_seed(seed)
    td = TensorDict(
        {
            "kind_logits": torch.randn(B, KINDS, generator=gen, dtype=torch.float64),
            "target_logits": torch.randn(B, TARGETS, generator=gen, dtype=torch.float64),
        },
        [B],
    )
    gen = torch.Generator().manual_seed(99)  # masks belong to the state, not to the policy
    td["kind_mask"] = torch.rand(B, KINDS, generator=gen) < 0.6
    td["kind_mask"][:, 1] = True
    td["target_mask"] = torch.rand(B, KINDS, TARGETS, generator=gen) < 0.6
    td["target_mask"][..., 3] = True
    td["target_mask"][:, 0] = False  # never looked at: kind 0 makes the target irrelevant
    td["target_mask"][~td["kind_mask"]] = False  # nor is the row of a kind that is illegal
    return td


Joint = dict[tuple[int, int, int], tuple[float, float, float]]


def enumerate_chain(td: TensorDict, table: Table, row: int) -> Joint:
    """(kind, target, tool) as written -> probability of each of the three given those before."""
    joint: Joint = {}
    kinds = oracle.masked_probs(td["kind_logits"][row].numpy(), td["kind_mask"][row].numpy())
    for kind in range(KINDS):
        if kind in RELEVANT_KINDS:
            targets = oracle.masked_probs(
                td["target_logits"][row].numpy(), td["target_mask"][row, kind].numpy()
            )
        else:
            targets = np.array([1.0, 0.0, 0.0, 0.0])
        for target in range(TARGETS):
            tools = np.array([1.0, 0.0])
            if kind in RELEVANT_KINDS and target in RELEVANT_TARGETS:
                logits = table.rows[kind, target].detach().numpy()
                tools = oracle.masked_probs(logits, np.ones(TOOLS))
            for tool in range(TOOLS):
                joint[kind, target, tool] = (kinds[kind], targets[target], tools[tool])
    return joint


def conditional_entropies(joint: Joint) -> list[float]:
    """H(kind), H(target | kind), H(tool | kind, target)."""
    total = [0.0, 0.0, 0.0]
    for parts in joint.values():
        p = math.prod(parts)
        for i in range(3):
            total[i] -= p * math.log(parts[i]) if p > 0 else 0.0
    return total


def conditional_kls(p: Joint, q: Joint) -> list[float]:
    total = [0.0, 0.0, 0.0]
    for key, parts in p.items():
        weight = math.prod(parts)
        for i in range(3):
            total[i] += weight * math.log(parts[i] / q[key][i]) if weight > 0 else 0.0
    return total


def all_written() -> list[tuple[int, int, int]]:
    """Every triple as it is written: an irrelevant leaf is 0."""
    triples = set()
    for kind, target, tool in itertools.product(range(KINDS), range(TARGETS), range(TOOLS)):
        target = target if kind in RELEVANT_KINDS else 0
        tool = tool if kind in RELEVANT_KINDS and target in RELEVANT_TARGETS else 0
        triples.add((kind, target, tool))
    return sorted(triples)


KEYS = ("kind", "target", "tool")


def as_actions(triple: tuple[int, ...]) -> TensorDict:
    return TensorDict({k: torch.full((B,), v) for k, v in zip(KEYS, triple, strict=True)}, [B])


def test_log_probs_equal_the_enumeration_and_the_joint_normalises() -> None:
    td, table = chain_inputs(), Table()
    # the triples of a kind that is illegal in a row have an empty mask for the target there
    dist = chain(table=table, on_empty="neutral").get_dist(td)
    total = torch.zeros(B, dtype=torch.float64)
    for triple in all_written():
        scores = dist.log_prob(as_actions(triple))
        found = sum(scores[f"{key}_log_prob"] for key in KEYS).exp()
        for row in range(B):
            expected = math.prod(enumerate_chain(td, table, row)[triple])
            assert found[row].item() == pytest.approx(expected, abs=1e-12)
        total += found
    torch.testing.assert_close(total, torch.ones(B, dtype=torch.float64))


@pytest.mark.parametrize("stored", [False, True])
def test_entropy_is_the_chain_rule(stored: bool) -> None:
    td, table = chain_inputs(), Table()
    if stored:
        td.update(as_actions((1, 3, 1)))
    entropy = chain(table=table).get_dist(td).entropy()
    for row in range(B):
        expected = conditional_entropies(enumerate_chain(td, table, row))
        found = [entropy[f"{key}_entropy"][row].item() for key in KEYS]
        assert found == pytest.approx(expected, abs=1e-12)
        joint = [math.prod(p) for p in enumerate_chain(td, table, row).values()]
        assert sum(found) == pytest.approx(oracle.entropy(np.array(joint)), abs=1e-12)


def test_kl_is_the_chain_rule_weighted_by_the_old_policy() -> None:
    old, new, old_table, new_table = chain_inputs(0), chain_inputs(1), Table(), Table()
    p, q = chain(table=old_table).get_dist(old), chain(table=new_table).get_dist(new)
    kl = p.kl(q)
    for row in range(B):
        pair = enumerate_chain(old, old_table, row), enumerate_chain(new, new_table, row)
        found = [kl[f"{key}_kl"][row].item() for key in KEYS]
        assert found == pytest.approx(conditional_kls(*pair), abs=1e-12)
    torch.testing.assert_close(kl_divergence(p, q), sum(kl[f"{key}_kl"] for key in KEYS))
    torch.testing.assert_close(kl_divergence(p, p), torch.zeros(B, dtype=torch.float64))


@pytest.mark.parametrize("what", ["log_prob", "entropy", "kl first", "kl second"])
def test_gradcheck(what: str) -> None:
    td, table = chain_inputs(), Table()
    other = chain(table=Table()).get_dist(chain_inputs(3))
    actions = chain(table=table).get_dist(td).sample()

    def fn(kind: Tensor, target: Tensor, rows: Tensor) -> Tensor:
        module = Table()
        del module.rows
        module.rows = rows  # type: ignore[assignment]  # a plain tensor in place of the parameter
        moved = td.copy().update({"kind_logits": kind, "target_logits": target})
        dist = chain(table=module).get_dist(moved)
        if what == "log_prob":
            return sum(dist.log_prob(actions).values())
        if what == "entropy":
            return sum(dist.entropy().values())
        return kl_divergence(dist, other) if what == "kl first" else kl_divergence(other, dist)

    inputs = (td["kind_logits"], td["target_logits"], table.rows.detach().clone())
    assert torch.autograd.gradcheck(fn, tuple(x.clone().requires_grad_() for x in inputs))


def test_draws_follow_the_joint_probabilities() -> None:
    """Chi-square over the triples of each row; a right sampler fails once in 10,000 seeds."""
    td, table, draws = chain_inputs(), Table(), 20_000
    sample = chain(table=table).get_dist(td).sample((draws,))
    assert sample.batch_size == torch.Size([draws, B])
    for row in range(B):
        expected = {k: math.prod(v) for k, v in enumerate_chain(td, table, row).items()}
        expected = {k: p for k, p in expected.items() if p > 0}
        drawn = torch.stack([sample[key][:, row] for key in KEYS], -1)
        values, counts = drawn.unique(dim=0, return_counts=True)
        found = {tuple(v.tolist()): int(c) for v, c in zip(values, counts, strict=True)}
        assert set(found) <= set(expected)  # nothing illegal, irrelevant leaves 0
        likely = {k: p for k, p in expected.items() if p * draws >= 5}
        chi = sum((found.get(k, 0) - p * draws) ** 2 / (p * draws) for k, p in likely.items())
        bins = max(len(likely) - 1, 1)
        assert chi <= bins * (1 - 2 / (9 * bins) + 3.719 * (2 / (9 * bins)) ** 0.5) ** 3


def test_at_stored_actions_entropy_and_kl_are_unbiased_estimates() -> None:
    td, table = chain_inputs(), Table()
    head = chain(enumerate_parents=False, table=table)
    exact = chain(table=table).get_dist(td).entropy()["tool_entropy"]
    draws = 4000
    many = td.unsqueeze(0).expand(draws, B)
    many = many.clone().update(head.get_dist(td).sample((draws,)))
    estimate = head.get_dist(many).entropy()["tool_entropy"]
    error = estimate.std(0) / draws**0.5
    # 4 standard errors: a right estimate fails once in 15,000 seeds per row
    assert ((estimate.mean(0) - exact).abs() <= 4 * error + 1e-9).all()
    with pytest.raises(ValueError, match="'tool': its distribution is known at given actions only"):
        head.get_dist(td).entropy()


# ---- irrelevant leaves


def gated() -> tuple[CompositeHead, TensorDict]:
    head = CompositeHead(
        CategoricalHead("kind", 3),
        CategoricalHead("target", 4, mask=True, when={"kind": [2]}),
        TanhNormalHead("force", 1.0, 3.0, (2,), when={"kind": [1, 2]}),
        BernoulliHead("bits", 3, when={"kind": 0}),
    )
    td = TensorDict(
        {
            "kind_logits": torch.randn(B, 3),
            "target_logits": torch.randn(B, 4),
            "force_loc": torch.randn(B, 2),
            "force_scale": torch.randn(B, 2),
            "bits_logits": torch.randn(B, 3),
            "target_mask": torch.ones(B, 4, dtype=torch.bool),
        },
        [B],
    )
    return head, td


def test_an_irrelevant_leaf_is_0_and_counts_nothing() -> None:
    head, td = gated()
    params = {k: v.requires_grad_() for k, v in td.items() if v.is_floating_point()}
    td["kind"] = torch.tensor([0, 1, 2, 0, 1])
    td["target"] = torch.tensor([0, 0, 3, 0, 0])
    td["force"] = torch.where((td["kind"] > 0).unsqueeze(-1), 2.0, 0.0).expand(B, 2)
    td["bits"] = torch.tensor([[1, 0, 1], [0] * 3, [0] * 3, [1, 1, 1], [0] * 3])
    scores = head.get_dist(td).log_prob(td)
    sum(scores.values()).sum().backward()
    relevant = {
        "target": td["kind"] == 2,
        "force": td["kind"] > 0,
        "bits": td["kind"] == 0,
    }
    for name, rows in relevant.items():
        assert (scores[f"{name}_log_prob"][~rows] == 0).all()
        assert (scores[f"{name}_log_prob"][rows] != 0).all()
        for key, value in params.items():
            if key.startswith(name):
                assert value.grad is not None
                assert (value.grad[~rows] == 0).all()
                assert (value.grad[rows] != 0).any()


BOUNDED: dict[str, Any] = {
    "tanh": lambda **kw: TanhNormalHead("force", 1.0, 3.0, (2,), **kw),
    "beta": lambda **kw: BetaHead("force", -3.0, -1.0, (2,), **kw),
    "box": lambda **kw: BoxNormalHead(
        "force", torch.ones(2), torch.tensor([torch.inf, 3.0]), (2,), **kw
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("mode", ["RANDOM", "DETERMINISTIC", "MODE", "MEAN"])
def test_an_irrelevant_leaf_is_written_as_0_also_outside_of_its_bounds(
    name: str, mode: str
) -> None:
    head = CompositeHead(CategoricalHead("kind", 2), BOUNDED[name](when={"kind": 1}))
    td = head.projection(6, gain=1.0)(TensorDict({"hidden": torch.randn(50, 6)}, [50]))
    with set_exploration_type(ExplorationType[mode]):
        drawn = head(td)
    on = drawn["kind"] == 1
    assert (drawn["force"][~on] == 0).all()
    assert (drawn["force"][on].abs() >= 1).all()
    assert on.any()
    assert not on.all()
    assert (head.get_dist(drawn).log_prob(drawn)["force_log_prob"] == drawn["force_log_prob"]).all()


def test_the_mask_of_an_irrelevant_row_is_nobodys_business() -> None:
    head, td = gated()
    td["kind_logits"] = torch.tensor([0.0, 50.0, 0.0]).expand(B, 3)
    td["target_mask"][:] = False
    drawn = head(td)
    assert (drawn["target"] == 0).all()
    assert (drawn["target_log_prob"] == 0).all()
    td["kind_logits"] = torch.tensor([0.0, 0.0, 50.0]).expand(B, 3)
    with pytest.raises(ValueError, match="'target_mask': no legal choice"):
        head(td)


def test_a_child_of_an_irrelevant_parent_is_irrelevant() -> None:
    head = CompositeHead(
        CategoricalHead("a", 2),
        CategoricalHead("b", 2, when={"a": 1}),
        CategoricalHead("c", 2, when={"b": 0}),
    )
    td = TensorDict({f"{k}_logits": torch.zeros(2, 2) for k in "abc"}, [2])
    td["a"], td["b"], td["c"] = torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 1])
    scores = head.get_dist(td).log_prob(td)
    assert scores["b_log_prob"].tolist() == pytest.approx([0, math.log(0.5)])
    assert scores["c_log_prob"].tolist() == pytest.approx([0, math.log(0.5)])
    # H(b | a) = P(a = 1) log 2, H(c | a, b) = P(a = 1, b = 0) log 2
    entropy = head.get_dist(td).entropy()
    assert entropy["b_entropy"].tolist() == pytest.approx([math.log(2) / 2] * 2)
    assert entropy["c_entropy"].tolist() == pytest.approx([math.log(2) / 4] * 2)


def test_a_loss_counts_active_arguments_only() -> None:
    # With every argument counted the entropy of this policy would be log 3 + log 4 + ...; it is
    # H(kind) + P(kind = 2) H(target) + P(kind > 0) H(force) + P(kind = 0) H(bits).
    head, td = gated()
    with set_exploration_type(ExplorationType.RANDOM):
        td = head(td).detach()
    td["observation"] = torch.randn(B, FEATURES)
    td["advantage"] = td["value_target"] = torch.randn(B, 1)
    out = ClipPPOLoss(head, critic())(td)
    p = td["kind_logits"].softmax(-1)
    parts = {
        "kind": torch.distributions.Categorical(probs=p).entropy(),
        "target": p[:, 2] * torch.distributions.Categorical(logits=td["target_logits"]).entropy(),
        "bits": p[:, 0] * torch.distributions.Bernoulli(logits=td["bits_logits"]).entropy().sum(-1),
    }
    for name, expected in parts.items():
        torch.testing.assert_close(out["composite_entropy", f"{name}_entropy"], expected.mean())
    assert out["max_ratio"] == 1


def test_a_choice_restricts_the_next_one() -> None:
    # move: straight on only; attack: enemies 1 and 3 only; wait: nobody, the target is irrelevant
    allowed = {0: [0], 1: [1, 3], 2: [0]}
    head = CompositeHead(
        CategoricalHead("kind", 3),
        CategoricalHead("target", 4, mask=True, mask_given="kind", when={"kind": [0, 1]}),
    )
    rows = 3000
    td = TensorDict({"kind_logits": torch.zeros(rows, 3), "target_logits": torch.zeros(rows, 4)})
    td.batch_size = [rows]
    td["target_mask"] = torch.zeros(rows, 3, 4, dtype=torch.bool)
    for kind in (0, 1):
        td["target_mask"][:, kind, allowed[kind]] = True
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = head(td)
    for kind, targets in allowed.items():
        taken = drawn["target"][drawn["kind"] == kind]
        assert set(taken.tolist()) == set(targets)
        score = drawn["target_log_prob"][drawn["kind"] == kind]
        torch.testing.assert_close(score, torch.full_like(score, -math.log(len(targets))))
    pair = TensorDict({"kind": torch.tensor([0, 1]), "target": torch.tensor([1, 0])}, [2])
    scores = head.get_dist(td[:2]).log_prob(pair)
    assert scores["target_log_prob"].tolist() == [-math.inf, -math.inf]


# ---- teacher forcing


def test_the_update_uses_the_stored_actions_and_draws_nothing() -> None:
    case = next(case for case in HEADS if case.name == "autoregressive")
    actor = case.actor()
    td = collect(case, actor, [64])
    loss = ClipPPOLoss(actor, critic())
    before = torch.get_rng_state()
    out, _ = gradients(loss, td)
    assert (torch.get_rng_state() == before).all()
    assert out["max_ratio"] == 1
    assert out["clip_fraction"] == 0
    # another first action changes the score of the leaf after it
    other = td.clone()
    other["kind"] = (other["kind"] + 1) % 7
    scores = [actor.get_dist(x).log_prob(x)["target_log_prob"] for x in (td, other)]
    assert ((scores[0] - scores[1]).abs() > 1e-6).any()


def test_acting_ignores_actions_that_are_there_already() -> None:
    case = next(case for case in HEADS if case.name == "autoregressive")
    actor, td = case.actor(), case.inputs([500])
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        first = actor(td.clone())
        again = actor(first.clone())
    assert (first["kind"] != again["kind"]).any()
    scores = actor.get_dist(again).log_prob(again)
    assert (scores["target_log_prob"] == again["target_log_prob"]).all()


def test_parameters_of_autoregressive_leaves_are_written_as_they_were_at_the_drawn_actions() -> (
    None
):
    case = next(case for case in HEADS if case.name == "autoregressive")
    actor = case.actor()
    td = collect(case, actor, [11])
    assert "target_logits" in actor.out_keys
    forced = actor.get_dist(td)["target"].logits
    stored = td["target_logits"].log_softmax(-1)
    torch.testing.assert_close(forced, stored)


def test_parents_of_every_kind_are_embedded() -> None:
    parents = [
        CategoricalHead("a", 3, dtype=torch.int8),
        OneHotCategoricalHead("b", 4),
        MultiCategoricalHead("c", [2, 3]),
        BernoulliHead("d", 3),
        NormalHead("e", (2, 2)),
    ]
    child = CategoricalHead("f", 5, after=("a", "b", "c", "d", "e"))
    actor = make_actor(
        TensorDictModule(nn.Linear(FEATURES, 13), ["observation"], ["hidden"]),
        CompositeHead(*parents, child, num_features=13),
        num_features=13,
    )
    with set_exploration_type(ExplorationType.RANDOM):
        td = actor(TensorDict({"observation": torch.randn(7, FEATURES)}, [7]))
    td["f_log_prob"].sum().backward()
    for module in actor[-1].parameter_modules[0].module.embeddings:
        for param in module.parameters():
            assert param.grad is not None
            assert (param.grad != 0).any()


def test_parents_whose_choices_do_not_start_at_0() -> None:
    head = CompositeHead(
        CategoricalHead("k", 3, start=5),
        CategoricalHead("a", 2, when={"k": 1}),
        CategoricalHead("b", 2, after=("k",), enumerate_parents=True),
        MultiCategoricalHead("c", [2, 3], start=[-1, 4], after=("k",)),
        CategoricalHead("d", 2, after=("c",)),
        num_features=6,
    )
    td = head.projection(6, gain=1.0)(TensorDict({"hidden": torch.randn(200, 6)}, [200]))
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = head(td)
    assert set(drawn["k"].tolist()) == {5, 6, 7}
    assert set(drawn["c"][:, 0].tolist()) == {-1, 0}
    assert set(drawn["c"][:, 1].tolist()) == {4, 5, 6}
    assert ((drawn["a_log_prob"] != 0) == (drawn["k"] == 6)).all()  # when speaks of choices
    assert head.get_dist(drawn).entropy()["b_entropy"].isfinite().all()


def test_enumerated_parents_of_every_finite_kind() -> None:
    for parent in (OneHotCategoricalHead("p", 3), MultiCategoricalHead("p", [2, 3]),
                   BernoulliHead("p", 3)):  # fmt: skip
        child = CategoricalHead("c", 4, after=("p",), enumerate_parents=True)
        head = CompositeHead(parent, child, num_features=6).double()
        nn.init.normal_(head.parameter_modules[0].module.out.weight)
        td = TensorDict({"hidden": torch.randn(B, 6, dtype=torch.float64)}, [B])
        td = head.projection(6, gain=1.0).double()(td)
        dist = head.get_dist(td)
        every = parent.all_actions()
        assert every is not None
        total, mean = torch.zeros(B, dtype=torch.float64), torch.zeros(B, dtype=torch.float64)
        for value in every:
            sample = TensorDict({"p": value.expand(B, *value.shape)}, [B])
            sample["c"] = torch.zeros(B, dtype=torch.int64)
            weight = dist.log_prob(sample)["p_log_prob"].exp()
            forced = head.get_dist(td.copy().update(sample))["c"]
            mean += weight * forced.entropy()
            total += weight
        torch.testing.assert_close(total, torch.ones(B, dtype=torch.float64))
        torch.testing.assert_close(dist.entropy()["c_entropy"], mean)


# ---- what a user does wrong

WRONG: dict[str, tuple[Any, str]] = {
    "unknown parent": (
        lambda: CompositeHead(CategoricalHead("a", 2, when={"kind": 1})),
        r"'a': expected its parent among the leaves before it, \[\], got 'kind'",
    ),
    "order": (
        lambda: CompositeHead(CategoricalHead("a", 2, after=("b",)), CategoricalHead("b", 2)),
        "order the heads parents first",
    ),
    "parent is no choice": (
        lambda: CompositeHead(NormalHead("x"), CategoricalHead("a", 2, when={"x": 1})),
        "'x' is not one choice; when and mask_given need",
    ),
    "choice out of range": (
        lambda: CompositeHead(CategoricalHead("k", 2), CategoricalHead("a", 2, when={"k": [2]})),
        r"when=\{'k': \[2\]\}: expected choices from 0 to 1",
    ),
    "never": (lambda: CategoricalHead("a", 2, when={"k": []}), "is never true"),
    "no mask": (
        lambda: CompositeHead(CategoricalHead("k", 2), CategoricalHead("a", 2, mask_given="k")),
        "mask_given needs a mask",
    ),
    "endless": (
        lambda: CompositeHead(
            NormalHead("x"), CategoricalHead("a", 2, after=("x",), enumerate_parents=True)
        ),
        r"\['x'\] (have no finite support|take infinitely many values)",
    ),
    "features": (
        lambda: CompositeHead(
            CategoricalHead("k", 2), CategoricalHead("a", 2, after=("k",))
        ).projection(32),
        r"reads 64 features at 'hidden', the projection 32 .*num_features=32\)",
    ),
    "alone": (
        lambda: CategoricalHead("a", 2, when={"k": 1}).get_dist(TensorDict()),
        r"'a': it depends on \['k'\]; put them into one CompositeHead",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_dependences_say_what_to_do(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_after_is_a_tuple() -> None:
    with pytest.raises(TypeError, match="after is a tuple of leaves, got 'kind'"):
        CategoricalHead("a", 2, after="kind")


def test_a_mask_without_its_row_per_parent_is_named() -> None:
    td = chain_inputs()
    td["target_mask"] = td["target_mask"][:, 0]
    with pytest.raises(
        ValueError, match=r"'target_mask': expected shape \[5, 3, 4\], got \[5, 4\]"
    ):
        chain()(td)


# ---- a loss runs the networks with parameters that are not theirs


def _own_parameters() -> Head:
    """Leaves with parameters of their own, of which entropy and KL are exact."""
    return CompositeHead(
        CategoricalHead("kind", 3),
        NormalHead("force", (2,), free_scale=True, when={"kind": [1, 2]}),
        CategoricalHead("target", 5, after=("kind",), enumerate_parents=True),
        num_features=13,
    )


def _padded_and_moved(
    dtype: torch.dtype = torch.float64,
) -> tuple[nn.Module, TensorDict]:
    case = HeadCase("own parameters", _own_parameters)
    td = collect(case, actor := case.actor(dtype), [7], dtype)
    td["collector", "mask"] = torch.arange(7).unsqueeze(-1) % 3 != 0
    move(actor, 0.3)
    return actor, td


@pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
def test_a_copied_loss_uses_its_own_parameters(kind: LossCase) -> None:
    actor, td = _padded_and_moved()
    loss = kind.build(actor, critic(torch.float64))
    expected, expected_grad = gradients(loss, td)
    found, found_grad = gradients(twin := copy.deepcopy(loss), td)
    assert set(found_grad) == set(expected_grad)
    for name, grad in expected_grad.items():
        torch.testing.assert_close(found_grad[name], grad)
    check_finite_differences(twin, td, TERMS)
    move(loss, seed=1)
    again, _ = gradients(twin, td)
    for key, figure in found.items(True, True):
        torch.testing.assert_close(again[key], figure)
        torch.testing.assert_close(expected[key], figure)


def test_the_kl_from_the_target_policy_is_not_that_from_the_policy_itself() -> None:
    actor, td = _padded_and_moved()
    loss = KLPENPPOLoss(actor, None, delay_actor=True, adapt_beta=False)
    SoftUpdate(loss, eps=0.9)
    old = copy.deepcopy(actor).get_dist(td.clone())
    move(actor, 0.3, seed=1)
    new = actor.get_dist(td.clone())
    expected = old.kl(new)
    found = loss(td)["kl"]
    rows = td["collector", "mask"].squeeze(-1)
    total = sum(expected.values())[rows].mean()
    assert all((expected[f"{leaf}_kl"][rows] > 1e-3).any() for leaf in ("force", "target"))
    torch.testing.assert_close(found, total)
    ratio = sum(new.log_prob(td).values()) - sum(old.log_prob(td).values())
    torch.testing.assert_close(loss(td)["kl_approx"], -ratio[rows].mean())
