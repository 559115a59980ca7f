"""Where the mask and the action spec disagree: fewer entries, more, or a mask in the spec only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)
from torchrl.envs import ActionMask, TicTacToeEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import CategoricalHead, CompositeHead, Head, MultiCategoricalHead, make_head


def bits(*shape: int) -> Binary:
    return Binary(shape[-1], shape=shape, dtype=torch.bool)


def drawn(head: Head, mask: torch.Tensor) -> TensorDict:
    (leaf,) = head.leaves
    td = TensorDict({leaf.mask_key: mask}, list(mask.shape[:1]))
    for key in leaf.param_keys.values():
        td[key] = torch.randn(mask.shape[0], head.num_params)
    with set_exploration_type(ExplorationType.RANDOM):
        return head(td)


# ---- a mask with fewer entries than the spec has choices

NARROW: dict[str, tuple[TensorSpec, tuple[int, ...], set[tuple[int, ...]]]] = {
    "categorical": (Categorical(6), (4,), {(i,) for i in range(4)}),
    "one integer": (Bounded(3, 9, (), dtype=torch.int32), (2,), {(3,), (4,)}),
    "a vector of one integer": (Bounded(0, 5, (1,), dtype=torch.int8), (2,), {(0,), (1,)}),
    "the same, per dim": (Bounded(0, 5, (1,), dtype=torch.int8), (1, 2), {(0,), (1,)}),
    "integers": (
        Bounded(torch.tensor([-4, 5]), torch.tensor([4, 9]), dtype=torch.int16),
        (2, 3),
        {(i, j) for i in (-4, -3, -2) for j in (5, 6, 7)},
    ),
    "homogeneous multi-discrete": (
        Categorical(5, shape=(3,)),
        (3, 2),
        {(i, j, k) for i in range(2) for j in range(2) for k in range(2)},
    ),
    "multi-categorical": (
        MultiCategorical([2, 5], dtype=torch.int32),
        (2, 3),
        {(i, j) for i in range(2) for j in range(3)},
    ),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("where", ["found", "named"])
def test_the_mask_says_how_many_choices_there_are(name: str, where: str) -> None:
    spec, shape, expected = NARROW[name]
    key: Any = {"found": "action_mask", "named": ("info", "mine")}[where]
    observation = Composite()
    observation[key] = bits(*shape)
    mask = None if where == "found" else {"action": key}
    head = make_head(Composite(action=spec), observation, mask=mask)
    assert head.leaves[0].mask_key == key
    td = drawn(head, torch.ones(400, *shape, dtype=torch.bool))
    assert td["action"].dtype == spec.dtype
    assert spec.expand(td["action"].shape).is_in(td["action"])
    assert {tuple(row) for row in td["action"].view(400, -1).tolist()} == expected


def test_the_mask_of_agents_says_how_many_choices_they_have() -> None:
    low, high = torch.tensor([0, 4, 0]), torch.tensor([9, 6, 1])
    specs = [Bounded(a, b, (), dtype=torch.int64) for a, b in zip(low, high, strict=True)]
    for boxes in (specs, [Categorical(int(b - a) + 1) for a, b in zip(low, high, strict=True)]):
        group = torch.stack([Composite(action=box) for box in boxes])
        observation = Composite(agents=Composite(action_mask=bits(3, 5), shape=(3,)))
        head = make_head(Composite(agents=group), observation)
        assert isinstance(head, CategoricalHead)
        assert head.n == 5  # of 10, 3 and 2
        agents = TensorDict({"action_logits": torch.randn(400, 3, 5)}, [400, 3])
        agents["action_mask"] = torch.ones(400, 3, 5, dtype=torch.bool)
        with set_exploration_type(ExplorationType.RANDOM):
            actions = head(TensorDict({"agents": agents}, [400]))["agents", "action"]
        starts = low if boxes is specs else torch.zeros(3, dtype=torch.int64)
        found = [set(column.tolist()) for column in (actions - starts).unbind(1)]
        assert found == [{0, 1, 2, 3, 4}, {0, 1, 2}, {0, 1}]


@pytest.mark.parametrize(
    ("spec", "shape", "options", "message"),
    [
        (Categorical(6), (7,), {}, r"of shape \[6\], got \[7\]; the action has no such choices"),
        (
            Bounded(0, 21, (2,), dtype=torch.int16),
            (2, 23),
            {},
            r"\[44\] or \[2, 22\], got \[2, 23\]; the action has no such choices",
        ),
        # a one-hot is as wide as its spec, and a flat row does not say whose choices are missing
        (OneHot(6), (5,), {}, r"\[6\], got \[5\]; say mask="),
        (MultiOneHot([3, 4]), (2, 3), {}, r"\[7\] or \[2, 4\], got \[2, 3\]; say mask="),
        (Binary(6), (5,), {}, r"\[6\], got \[5\]; say mask="),
        (MultiCategorical([3, 4]), (6,), {}, r"\[7\] or \[2, 4\], got \[6\]; say mask="),
        # a table of combinations is never taken for rows of dimensions
        (MultiCategorical([2, 1]), (2, 1), {}, r"\[3\] or \[2, 2\], got \[2, 1\]; say joint=True"),
        (MultiCategorical([5, 4]), (5, 4), {}, r"got \[5, 4\]; say joint=True"),
        (MultiCategorical([5, 4]), (2, 4), {"joint": True}, r"of shape \[5, 4\], got \[2, 4\]"),
        (MultiCategorical([5, 4]), (2, 0), {}, r"\[9\] or \[2, 5\], got \[2, 0\]"),
    ],
)
def test_other_shapes_are_refused(
    spec: TensorSpec, shape: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"'action_mask': expected a mask of 'action'.*{message}"):
        make_head(Composite(action=spec), Composite(action_mask=bits(*shape)), **options)


def test_only_a_name_that_says_so_makes_a_mask_out_of_fewer_entries() -> None:
    assert make_head(Categorical(6), Composite(mask=bits(5))).leaves[0].mask_key is None
    both = Composite(action_masks=bits(5), mask=bits(6))
    head = make_head(Categorical(6), both)
    assert isinstance(head, CategoricalHead)
    assert (head.mask_key, head.n) == ("mask", 6)  # what fits goes before what is narrower
    with pytest.raises(ValueError, match=r"may be its mask: \['action_masks', 'legal_moves'\]"):
        make_head(Categorical(6), Composite(action_masks=bits(5), legal_moves=bits(4)))


@pytest.mark.parametrize("mask", [None, {"kind": "action_mask"}])
def test_a_mask_of_one_leaf_does_not_narrow_another(mask: Any) -> None:
    spec = Composite(kind=Categorical(4), target=Categorical(6))
    observation = Composite(action_mask=bits(4))
    with pytest.raises(ValueError, match="'action_mask': it may be the mask of 'kind' or of 'targ"):
        make_head(spec, observation, mask=mask)
    head = make_head(spec, observation, mask={"kind": "action_mask", "target": False})
    assert isinstance(head, CompositeHead)
    assert [leaf.mask_key for leaf in head.leaves] == ["action_mask", None]
    assert head.num_params == 4 + 6


# ---- a mask in the action spec only

ROW = torch.tensor([True, False, True, True])
MASKED: dict[str, tuple[TensorSpec, tuple[int, ...]]] = {
    "categorical": (Categorical(4, mask=ROW), (4,)),
    "one-hot": (OneHot(4, mask=ROW), (4,)),
    "multi-categorical": (MultiCategorical([2, 2], mask=ROW), (4,)),
    "multi-one-hot": (MultiOneHot([2, 2], mask=ROW), (4,)),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("agents", [None, "updated", "differ"])
def test_a_mask_in_the_action_spec_only_is_not_dropped(name: str, agents: str | None) -> None:
    spec, shape = MASKED[name]
    action: Composite = Composite(action=spec)
    key: Any = "action"
    lead: tuple[int, ...] = ()
    if agents is not None:
        key, lead = ("agents", "action"), (2,)
        other = type(spec)(4) if name in ("categorical", "one-hot") else type(spec)([2, 2])
        parts = [spec, other] if agents == "differ" else [other, other]
        action = Composite(agents=torch.stack([Composite(action=part) for part in parts]))
        if agents == "updated":  # as OpenSpiel's environments do
            action[key].update_mask(ROW.expand(2, 4))
    for observation in (None, Composite(), Composite(board=bits(4))):
        with pytest.raises(ValueError) as refused:  # noqa: PT011  # all of the text is compared
            make_head(action, observation)
        assert str(refused.value).startswith(
            f"{key!r}: its action spec has a mask, and none is fou"
        )
        assert f"mask=False or mask={{{key!r}: False}} leaves it out" in str(refused.value)
    for left_out in (False, {key: False}):
        assert make_head(action, mask=left_out).leaves[0].mask_key is None
    # the search goes on where the caller says nothing of the leaf
    observed = Composite(action_mask=bits(*shape))
    if agents is not None:
        observed = Composite(agents=Composite(action_mask=bits(*lead, *shape), shape=lead))
    for mask in (None, {}, {key: None}):
        assert make_head(action, observed, mask=mask).leaves[0].mask_key is not None
    assert make_head(action, mask={key: ("info", "legal")}).leaves[0].mask_key == ("info", "legal")


def test_action_mask_transform_keeps_a_copy_in_the_spec() -> None:
    env = TransformedEnv(TicTacToeEnv(single_player=True), ActionMask(mask_key="mask"))
    env.reset()
    assert env.full_action_spec["action"].mask is not None
    head = make_head(env.full_action_spec, env.observation_spec)
    assert head.leaves[0].mask_key == "mask"


# ---- shapes and dtypes at the edge

EDGE: dict[str, TensorSpec] = {
    "a bit without dims": Binary(shape=()),
    "one bit": Binary(1),
    "bits of bool": Binary(3, dtype=torch.bool),
    "all of int8": Bounded(-128, 127, (2,), dtype=torch.int8),
    "all of uint8": Bounded(0, 255, (1,), dtype=torch.uint8),
    "the end of int64": Bounded(2**63 - 3, 2**63 - 1, (2,), dtype=torch.int64),
    "the start of int64": Bounded(-(2**63), -(2**63) + 2, (), dtype=torch.int64),
    "integers of bool": Bounded(0, 1, (2,), dtype=torch.bool),
    "a dim without choice": Bounded(torch.tensor([2, 0]), torch.tensor([2, 3]), dtype=torch.int64),
}


@pytest.mark.parametrize("name", EDGE)
def test_actions_at_the_edge_are_in_the_spec(name: str) -> None:
    spec = EDGE[name]
    head = make_head(Composite(action=spec.expand(5, *spec.shape), shape=(5,)))
    td = TensorDict({"action_logits": torch.randn(400, 5, head.num_params)}, [400, 5])
    with set_exploration_type(ExplorationType.RANDOM):
        td = head(td)
    assert td["action"].dtype == spec.dtype
    assert spec.expand(400, 5, *spec.shape).is_in(td["action"])
    assert td["action_log_prob"].shape == td.batch_size
    assert torch.isfinite(td["action_log_prob"]).all()
    if head.num_params < 10:
        low, high = (getattr(spec.space, b, None) for b in ("low", "high"))
        smallest = torch.zeros(spec.shape) if low is None else low
        largest = torch.ones(spec.shape) if high is None else high
        rows = td["action"].flatten(0, 1)
        assert (rows.amin(0) == smallest).all()
        assert (rows.amax(0) == largest).all()


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-(2**63), 2**63 - 1, torch.int64),
        (0, 2**63 - 1, torch.int64),
        (-(2**31), 2**31 - 1, torch.int32),
    ],
)
@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_more_integers_than_logits_are_possible_are_refused(
    low: int, high: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="'action': no head for integers with more than 16777216"):
        make_head(Bounded(low, high, shape, dtype=dtype))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (MultiCategorical(torch.tensor([[2, 3], [4, 5]])), r"\[2, 2\]"),
        (Categorical(3, shape=(0,)), r"\[0\]"),
        (OneHot(5, shape=(1, 5)), r"\[1, 5\]"),
        (Bounded(0, 3, (1, 1), dtype=torch.int64), r"\[1, 1\]"),
    ],
)
def test_discrete_actions_are_rows(spec: TensorSpec, shape: str) -> None:
    with pytest.raises(
        ValueError, match=f"'action': no head for discrete actions of shape {shape}"
    ):
        make_head(spec)


def test_a_wide_mask_is_flat_or_padded_in_a_batched_environment() -> None:
    spec = Composite(action=MultiCategorical([2, 3], shape=(7, 2)), shape=(7,))
    for shape in ((5,), (2, 3)):
        head = make_head(spec, Composite(action_mask=bits(7, *shape), shape=(7,)), joint=False)
        assert isinstance(head, MultiCategoricalHead)
        assert head.mask_key == "action_mask"


@pytest.mark.parametrize("nvec", [[2, 2], [2, 5]])
def test_a_mask_that_may_be_joint_or_one_per_dimension_has_to_be_stated(nvec: list[int]) -> None:
    spec = Composite(action=MultiCategorical(nvec))
    observation = Composite(action_mask=Binary(max(nvec), (2, max(nvec)), dtype=torch.bool))
    with pytest.raises(ValueError, match=r"'action_mask': .*say joint=False or joint=True"):
        make_head(spec, observation)
    widths = {
        joint: make_head(spec, observation, joint=joint).num_params for joint in (False, True)
    }
    assert widths == {False: sum(nvec), True: nvec[0] * nvec[1]}
    options = {"action": {"joint": True}}
    assert make_head(spec, observation, leaf_options=options).num_params == nvec[0] * nvec[1]
