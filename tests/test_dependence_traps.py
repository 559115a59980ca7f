"""What goes wrong where leaves depend on each other: encodings, shared storage, stored parents."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import kl_divergence
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import (
    BernoulliHead,
    BoxNormalHead,
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    MultiOneHotHead,
    NormalHead,
    OneHotCategoricalHead,
    SequenceHead,
    SparseCategoricalHead,
    make_actor,
)
from tdheads.distributions.box_normal import Sides
from tdheads.heads.dependence import HeadConditional
from tests.cases import FEATURES, HEADS, critic

INF = math.inf


def acting(head: CompositeHead) -> Any:
    body = TensorDictModule(nn.Linear(FEATURES, 6), ["observation"], ["hidden"])
    actor = make_actor(body, head, num_features=6)
    for param in actor.parameters():
        nn.init.normal_(param)
    return actor


def pair() -> CompositeHead:
    return CompositeHead(
        CategoricalHead("a", 3),
        CategoricalHead("b", 4, after=("a",), enumerate_parents=True),
        num_features=6,
    )


# ---- a distribution is a value


def test_two_actors_on_one_tensordict_keep_their_own_parameters() -> None:
    first, second = acting(pair()), acting(pair())
    td = TensorDict({"observation": torch.randn(5, FEATURES)}, [5])
    apart = kl_divergence(first.get_dist(td.clone()), second.get_dist(td.clone()))
    shared = kl_divergence(first.get_dist(td), second.get_dist(td))
    torch.testing.assert_close(shared, apart)
    assert (shared > 1e-3).all()


@pytest.mark.filterwarnings("ignore:No target network updater")
def test_the_entropy_has_its_gradient_beside_a_delayed_actor() -> None:
    actor = acting(pair())
    td = TensorDict({"observation": torch.randn(5, FEATURES)}, [5])
    with set_exploration_type(ExplorationType.RANDOM):
        td = actor(td).detach()
    td["advantage"] = td["value_target"] = torch.randn(5, 1)
    grads = []
    for delay in (False, True):
        loss = ClipPPOLoss(actor, critic(), delay_actor=delay)
        loss.zero_grad()
        loss(td.clone())["loss_entropy"].backward()
        grads.append([p.grad.clone() for p in loss.actor_network_params.values(True, True)])
    torch.testing.assert_close(*grads)
    assert any((grad != 0).any() for grad in grads[0])


def test_it_can_be_expanded_and_moved() -> None:
    actor = acting(pair())
    td = actor(TensorDict({"observation": torch.randn(5, FEATURES)}, [5]))
    dist = actor.get_dist(td)
    wide = dist.expand((2, 5))
    torch.testing.assert_close(
        wide.log_prob(td.expand(2, 5))["b_log_prob"], td["b_log_prob"].expand(2, 5)
    )
    assert dist.to("cpu").log_prob(td)["b_log_prob"].shape == torch.Size([5])
    other = td.copy().update({"a": (td["a"] + 1) % 3})  # other parents than the stored ones
    torch.testing.assert_close(
        wide.log_prob(other.expand(2, 5))["b_log_prob"][1], dist.log_prob(other)["b_log_prob"]
    )
    for one in (dist, actor.get_dist(td.exclude("a", "b"))):
        for key, value in one.entropy().items():
            torch.testing.assert_close(one.expand((2, 5)).entropy()[key], value.expand(2, 5))
    with pytest.raises(ValueError, match=r"expand: expected dims in front of \[5\], got \[4\]"):
        dist.expand((4,))


def test_kl_to_the_distribution_at_collection_is_taken_at_the_stored_actions() -> None:
    actor = acting(pair())
    with set_exploration_type(ExplorationType.RANDOM):
        td = actor(TensorDict({"observation": torch.randn(9, FEATURES)}, [9])).detach()
    now, stored = actor.get_dist(td), actor[-1].stored_dist(td)
    for one, two in ((now, stored), (stored, now)):
        torch.testing.assert_close(kl_divergence(one, two), torch.zeros(9))


# ---- parents that cannot happen


def test_infinite_figures_under_impossible_parents_leave_no_nan_gradient() -> None:
    child = TensorDictModule(
        lambda a: torch.zeros(*a.shape, 3).masked_fill((a == 1)[..., None], -INF),
        ["a"],
        ["c_logits"],
    )
    head = CompositeHead(
        CategoricalHead("a", 2, mask=True),
        CategoricalHead("c", 3, after=("a",), enumerate_parents=True, parameters=child),
    )
    logits = torch.zeros(1, 2, requires_grad=True)
    td = TensorDict({"a_logits": logits, "a_mask": torch.tensor([[True, False]])}, [1])
    (grad,) = torch.autograd.grad(head.get_dist(td).entropy()["c_entropy"].sum(), logits)
    assert (grad == 0).all()


def test_an_infinite_kl_under_an_impossible_parent_leaves_no_nan_gradient() -> None:
    head = CompositeHead(
        CategoricalHead("a", 2, mask=True), CategoricalHead("c", 3, mask=True, mask_given="a")
    )
    params = [torch.zeros(1, n, requires_grad=True) for n in (2, 3)]
    rows = ([1, 1, 1], [1, 0, 0])  # only under the parent that cannot happen
    dists = [
        head.get_dist(
            TensorDict(
                {
                    "a_logits": params[0],
                    "c_logits": params[1],
                    "a_mask": torch.tensor([[True, False]]),
                    "c_mask": torch.tensor([[[1, 1, 1], row]]).bool(),
                },
                [1],
            )
        )
        for row in rows
    ]
    kl = kl_divergence(*dists)
    assert kl.item() == 0
    for grad in torch.autograd.grad(kl.sum(), params):
        assert (grad == 0).all()


# ---- an irrelevant parent is written as 0, whatever its choices look like

PARENTS: dict[str, Callable[..., Any]] = {
    "from 0": lambda **kw: CategoricalHead("p", 3, **kw),
    "from 1": lambda **kw: CategoricalHead("p", 3, start=1, **kw),
    "around 0": lambda **kw: CategoricalHead("p", 3, start=-1, **kw),
    "one hot": lambda **kw: OneHotCategoricalHead("p", 3, **kw),
}


@pytest.mark.parametrize("name", PARENTS)
def test_the_entropy_of_a_child_does_not_hang_on_how_its_parent_is_written(name: str) -> None:
    event = 1 if name == "one hot" else 0
    child = TensorDictModule(
        lambda p: torch.zeros(*p.shape[: p.ndim - event], 3), ["p"], ["c_logits"]
    )
    head = CompositeHead(
        CategoricalHead("g", 2),
        PARENTS[name](when={"g": 1}),
        CategoricalHead("c", 3, after=("p",), enumerate_parents=True, parameters=child),
    )
    td = TensorDict({"g_logits": torch.zeros(4, 2), "p_logits": torch.randn(4, 3)}, [4])
    entropy = head.get_dist(td).entropy()
    assert entropy["c_entropy"].tolist() == pytest.approx([math.log(3)] * 4)
    p = torch.distributions.Categorical(logits=td["p_logits"]).entropy() / 2
    torch.testing.assert_close(entropy["p_entropy"], p)


@pytest.mark.parametrize("name", PARENTS)
@pytest.mark.parametrize("how", ["mask_given", "after"])
def test_a_child_of_an_irrelevant_parent_of_any_encoding_runs(name: str, how: str) -> None:
    options: dict[str, Any] = {"after": ("p",)}
    if how == "mask_given":
        options = {"mask_given": "p", "mask": True}
    head = CompositeHead(
        CategoricalHead("g", 2),
        PARENTS[name](when={"g": 1}),
        CategoricalHead("c", 4, **options),
        num_features=6,
    )
    td = head.projection(6, gain=1.0)(TensorDict({"hidden": torch.randn(200, 6)}, [200]))
    td["c_mask"] = torch.ones(200, 3, 4, dtype=torch.bool)
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = head(td)
    again = head.get_dist(drawn).log_prob(drawn)
    assert (drawn["g"] == 0).any()
    for key in ("p_log_prob", "c_log_prob"):
        assert again[key].isfinite().all()
        assert (again[key] == drawn[key]).all()


# ---- lists of legal choices


def test_a_gated_list_of_legal_choices_acts_legally() -> None:
    head = CompositeHead(
        CategoricalHead("g", 2), SparseCategoricalHead("move", 50, max_legal=3, when={"g": 1})
    )
    rows = 400
    legal = torch.tensor([[7, 11, -1]]).repeat(rows, 1)
    td = TensorDict({"g_logits": torch.zeros(rows, 2), "move_logits": torch.zeros(rows, 3)}, [rows])
    td["move_legal"] = legal
    assert "move_legal" in head.in_keys
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = head(td)
    on = drawn["g"] == 1
    assert set(drawn["move"][on].tolist()) == {7, 11}
    assert (drawn["move"][~on] == 0).all()
    torch.testing.assert_close(drawn["move_log_prob"][on].exp(), torch.full((int(on.sum()),), 0.5))
    expected = torch.full((rows,), math.log(2) / 2)
    torch.testing.assert_close(head.get_dist(td).entropy()["move_entropy"], expected)


def test_a_list_of_legal_choices_can_be_a_parent() -> None:
    head = CompositeHead(
        SparseCategoricalHead("move", 5, max_legal=2),
        CategoricalHead("c", 3, when={"move": [3]}),
    )
    td = TensorDict({"move_logits": torch.zeros(2, 2), "c_logits": torch.zeros(2, 3)}, [2])
    td["move_legal"] = torch.tensor([[1, 3], [0, 4]])
    entropy = head.get_dist(td).entropy()
    assert entropy["c_entropy"].tolist() == pytest.approx([math.log(3) / 2, 0])


def test_a_list_takes_no_mask_per_parent() -> None:
    with pytest.raises(ValueError, match="'m': a SparseCategoricalHead takes no mask_given"):
        CompositeHead(
            CategoricalHead("g", 2), SparseCategoricalHead("m", 5, max_legal=2, mask_given="g")
        )


# ---- what a user does wrong


def test_an_additive_mask_on_a_gated_leaf_is_refused() -> None:
    head = CompositeHead(CategoricalHead("g", 2), CategoricalHead("c", 3, mask=True, when={"g": 1}))
    td = TensorDict({"g_logits": torch.zeros(4, 2), "c_logits": torch.zeros(4, 3)}, [4])
    td["c_mask"] = torch.tensor([0.0, -1e9, 0.0]).expand(4, 3)
    td["g"], td["c"] = torch.ones(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="c_mask"):
        head.get_dist(td)["c"]


@pytest.mark.parametrize("how", ["when", "mask_given", "after"])
def test_a_stored_parent_that_is_no_choice_is_named(how: str) -> None:
    options: dict[str, Any] = {
        "when": {"when": {"kind": 1}},
        "mask_given": {"mask_given": "kind", "mask": True},
        "after": {"after": ("kind",)},
    }[how]
    head = CompositeHead(CategoricalHead("kind", 2), CategoricalHead("c", 3, **options))
    td = TensorDict({"kind_logits": torch.zeros(4, 2), "c_logits": torch.zeros(4, 3)}, [4])
    td["hidden"] = torch.zeros(4, 64)
    td["c_mask"] = torch.ones(4, 2, 3, dtype=torch.bool)
    td["c"] = torch.zeros(4, dtype=torch.int64)
    td["kind"] = torch.tensor([0, 1, 5, 1])
    message = r"'kind': the stored action 5 in .* none of its 2 choices"
    with pytest.raises(ValueError, match=message):
        head.get_dist(td)
    td["kind"] = torch.zeros(4, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"'kind': expected shape \[4\], got \[4, 1\]"):
        head.get_dist(td)


def test_a_parameter_module_reads_its_parents_only() -> None:
    module = TensorDictModule(nn.Identity(), ["b"], ["c_logits"])
    leaf = CategoricalHead("c", 3, after=("a",), parameters=module)
    with pytest.raises(ValueError, match=r"'c': its parameter module reads \['b'\]"):
        CompositeHead(CategoricalHead("a", 2), CategoricalHead("b", 3), leaf)


def test_a_sequence_and_a_leaf_of_one_name_are_refused() -> None:
    sequence = SequenceHead("items", 3, 2, num_features=6)
    with pytest.raises(ValueError, match="two leaves write the same key"):
        CompositeHead(sequence, CategoricalHead("items", 3), num_features=6)


@pytest.mark.parametrize(
    "build",
    [
        lambda: SparseCategoricalHead("x", 5, max_legal=2, start=1),
        lambda: BernoulliHead("x", 3, start=1),
        lambda: OneHotCategoricalHead("x", 3, start=1),
        lambda: MultiOneHotHead("x", [3, 2], start=1),
    ],
)
def test_a_start_that_means_nothing_is_refused(build: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"'x': a \w+ takes no start"):
        build()


def test_stored_actions_of_a_free_scale_are_scored_again() -> None:
    child = NormalHead("x", shape=(2,), free_scale=True, after=("a",))
    head = CompositeHead(CategoricalHead("a", 2), child, num_features=6)
    td = head.projection(6)(TensorDict({"hidden": torch.randn(4, 6)}, [4]))
    drawn = head(td)
    again = head(drawn.clone(), _requires_sample=False)
    torch.testing.assert_close(again["x_log_prob"], drawn["x_log_prob"])


def test_when_is_a_mapping() -> None:
    with pytest.raises(TypeError, match=r"'c': when maps parents to choices, got \['a'\]"):
        CategoricalHead("c", 2, when=["a"])
    assert CategoricalHead("c", 2, when={"a": np.int64(1)}).dependence.when == {"a": (1,)}


@pytest.mark.parametrize("nested", [False, True])
def test_a_mask_that_forbids_to_stop_is_named(nested: bool) -> None:
    head: Any = SequenceHead("items", 3, 2, repeat=False, mask=True, num_features=6)
    if nested:
        head = CompositeHead(head, num_features=6)
    td = head.projection(6)(TensorDict({"hidden": torch.randn(4, 6)}, [4]))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1, 0] = False
    (key,) = (key for key in head.in_keys if "mask" in str(key))
    td[key] = mask
    with pytest.raises(ValueError, match=r"mask'?: stopping \(choice 0\) is forbidden in"):
        head(td)
    td[key] = torch.ones(4, 4, dtype=torch.bool)
    assert head(td)["items"].shape == torch.Size([4, 2])


# ---- composites in composites


def test_a_nested_composite_keeps_its_parameter_modules() -> None:
    inner = pair()
    outer = CompositeHead(inner, NormalHead("x"), num_features=6)
    assert outer.parameter_modules[0] is inner.parameter_modules[0]
    # and a width that only the inner one was told of still fits
    other = CompositeHead(pair(), NormalHead("x"))
    td = TensorDict({"hidden": torch.randn(4, 6), "a_logits": torch.zeros(4, 3)}, [4])
    td["x_loc"] = td["x_scale"] = torch.zeros(4, 1)
    assert other(td)["b"].shape == torch.Size([4])
    with pytest.raises(ValueError, match="are given to the CompositeHead"):
        CompositeHead(
            CompositeHead(CategoricalHead("a", 2), generator=torch.Generator()), NormalHead("x")
        )


# ---- low precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_bounded_actions_stay_inside_and_score_in_low_precision(dtype: torch.dtype) -> None:
    low, high = torch.tensor([0.1, -INF, -INF]), torch.tensor([INF, 100.3, INF])
    head = BoxNormalHead("x", low, high, (3,), dtype=dtype)
    rows = 500
    td = TensorDict({"x_loc": torch.randn(rows, 3) * 4, "x_scale": torch.ones(rows, 3)}, [rows])
    td = td.to(dtype)
    td["x_loc"][0] = torch.tensor([30.0, 30.0, 0.0], dtype=dtype)  # e^30 overflows float16
    td["x_loc"][1] = torch.tensor([-30.0, -30.0, 0.0], dtype=dtype)  # rounds to the bound
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = head(td)
    assert drawn["x"].isfinite().all()
    rounded = Sides(low, high).bound.to(drawn["x"].dtype)
    assert (drawn["x"][:, 0] >= rounded[0]).all()
    assert (drawn["x"][:, 1] <= rounded[1]).all()
    assert head.get_dist(drawn).log_prob(drawn["x"]).isfinite().all()


# ---- compile


@pytest.mark.slow
def test_a_second_loss_of_the_process_compiles_too() -> None:
    """Shapes that dynamo made symbolic for the first one must not fail a check in the second."""
    torch._dynamo.reset()
    names = ("conditional", "mask given")
    cases = [case for case in HEADS if case.name in names]
    assert len(cases) == len(names)
    for case in cases:
        for rows in (11, 7):
            actor = case.actor()
            with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
                td = actor(case.inputs([rows]))
            td["observation"] = td.get("observation", torch.randn(rows, FEATURES))
            td["advantage"] = td["value_target"] = torch.randn(rows, 1)
            loss = ClipPPOLoss(actor, critic())
            compiled = torch.compile(copy.copy(loss), backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(
                compiled(td.copy())["loss_objective"], loss(td.copy())["loss_objective"]
            )
    torch._dynamo.reset()


def test_a_missing_action_to_score_is_named() -> None:
    head = pair()
    td = head.projection(6)(TensorDict({"hidden": torch.randn(4, 6)}, [4]))
    td["a"] = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(KeyError, match="'b'"):
        head(td, _requires_sample=False)


def test_a_leaf_without_parents_is_built_once_for_score_and_entropy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor, built = acting(pair()), []
    build = HeadConditional.build

    def counted(self: HeadConditional, *args: Any, **kwargs: Any) -> Any:
        built.append(self.head.action_key)
        return build(self, *args, **kwargs)

    td = actor(TensorDict({"observation": torch.randn(5, FEATURES)}, [5])).detach()
    expected = actor.get_dist(td.exclude("a", "b")).entropy()["a_entropy"]
    monkeypatch.setattr(HeadConditional, "build", counted)
    dist = actor.get_dist(td)
    dist.log_prob(td)
    assert built == ["a", "b"]
    entropy = dist.entropy()["a_entropy"]
    # of "b" the entropy needs what "a" is worth, and "b" after every choice of "a"
    assert built == ["a", "b", "a", "b"]
    assert (entropy == expected).all()


def test_the_entropy_of_drawn_leaves_has_their_sample_dims() -> None:
    actor = acting(pair())
    dist = actor.get_dist(TensorDict({"observation": torch.randn(5, FEATURES)}, [5]))

    def pick(leaf: Any) -> torch.Tensor:
        return leaf.sample((3,) if leaf.batch_shape == (5,) else ())

    drawn = dist.drawn(pick, torch.Size([3]))
    for key, value in drawn.entropy().items():
        torch.testing.assert_close(value, dist.entropy()[key].expand(3, 5))
