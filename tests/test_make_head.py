"""make_head: one head per TorchRL spec, masks found where real environments put them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)

from tdheads import (
    BernoulliHead,
    BoxNormalHead,
    CategoricalHead,
    CompositeHead,
    Head,
    MultiCategoricalHead,
    MultiOneHotHead,
    NormalHead,
    OneHotCategoricalHead,
    TanhNormalHead,
    make_actor,
    make_head,
)

B = 5


def act(head: Head, observation: TensorDict) -> TensorDict:
    """Act with random features."""
    td = observation.clone()
    raw_key = ("agents", "hidden") if "agents" in observation.keys() else "hidden"
    batch = td["agents"].batch_size if raw_key != "hidden" else td.batch_size
    td[raw_key] = torch.randn(*batch, 13)
    return make_actor(_identity(raw_key), head, raw_key, 13)(td)


def _identity(key: Any) -> TensorDictModule:
    return TensorDictModule(torch.nn.Identity(), [key], [key])


SPECS: dict[str, tuple[TensorSpec, type[Head]]] = {
    "categorical": (Categorical(7), CategoricalHead),
    "int32": (Categorical(7, dtype=torch.int32), CategoricalHead),
    "homogeneous multi-discrete": (Categorical(7, shape=(3,)), MultiCategoricalHead),
    "one dimension": (Categorical(7, shape=(1,)), MultiCategoricalHead),
    "multi-categorical": (MultiCategorical([3, 2, 5], dtype=torch.int32), MultiCategoricalHead),
    "a dimension of size 1": (MultiCategorical([6, 1, 3]), MultiCategoricalHead),
    "integers": (Bounded(0, 21, (2,), dtype=torch.int16), MultiCategoricalHead),
    "integers from below 0": (
        Bounded(torch.tensor([-3, 2]), torch.tensor([1, 9]), dtype=torch.int8),
        MultiCategoricalHead,
    ),
    "one integer from 5": (Bounded(5, 9, (), dtype=torch.int32), CategoricalHead),
    "one integer": (Bounded(0, 4, (), dtype=torch.int64), CategoricalHead),
    "one-hot": (OneHot(5), OneHotCategoricalHead),
    "one-hot of one choice": (OneHot(1), OneHotCategoricalHead),
    "multi-one-hot": (MultiOneHot([3, 2, 5]), MultiOneHotHead),
    "binary": (Binary(5), BernoulliHead),
    "box": (Bounded(-1.0, 3.0, (2,)), TanhNormalHead),
    "box of float64": (Bounded(-1.0, 3.0, (2,), dtype=torch.float64), TanhNormalHead),
    "box of two dims": (Bounded(0.0, 1.0, (2, 3)), TanhNormalHead),
    "box with equal bounds": (
        Bounded(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0])),
        TanhNormalHead,
    ),
    "half-infinite box": (
        Bounded(torch.tensor([0.0, -torch.inf, -1.0]), torch.tensor([torch.inf, 5.0, 1.0])),
        BoxNormalHead,
    ),
    "infinite box": (Bounded(-torch.inf, torch.inf, (2,)), NormalHead),
    "unbounded": (Unbounded((2,)), NormalHead),
    "unbounded scalar": (Unbounded(()), NormalHead),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("batch", [(), (B,), (2, 3)], ids=str)
def test_written_actions_are_in_the_spec(name: str, batch: tuple[int, ...]) -> None:
    spec, cls = SPECS[name]
    batched = Composite(action=spec.expand(*batch, *spec.shape), shape=batch)
    head = make_head(batched)
    assert type(head) is cls
    td = act(head, TensorDict({}, list(batch)))
    assert batched["action"].is_in(td["action"])
    assert td["action"].dtype == spec.dtype
    assert td["action"].shape == torch.Size([*batch, *spec.shape])
    assert td["action_log_prob"].shape == torch.Size(batch)


def test_a_composite_gives_one_leaf_per_entry_under_its_key() -> None:
    spec = Composite(
        kind=Categorical(3),
        arm=Composite(force=Bounded(-1, 1, (2,)), grip=MultiCategorical([2, 3])),
    )
    head = make_head(spec)
    assert isinstance(head, CompositeHead)
    assert head.dist_sample_keys == ["kind", ("arm", "force"), ("arm", "grip")]
    td = act(head, TensorDict({}, [B]))
    assert spec.expand(B).is_in(td.select(*head.dist_sample_keys))


def test_agent_dims_are_batch_dims() -> None:
    group = Composite(action=Categorical(5, shape=(3,)), shape=(3,))
    observation = Composite(
        agents=Composite(
            obs=Unbounded((3, 4)), action_mask=Binary(5, shape=(3, 5), dtype=torch.bool), shape=(3,)
        )
    )
    head = make_head(Composite(agents=group), observation)
    assert isinstance(head, CategoricalHead)
    assert head.in_keys == [("agents", "action_logits"), ("agents", "action_mask")]
    mask = torch.ones(B, 3, 5, dtype=torch.bool)
    td = TensorDict({"agents": TensorDict({"action_mask": mask}, [B, 3])}, [B])
    assert act(head, td)["agents", "action_log_prob"].shape == torch.Size([B, 3])


def test_a_bare_spec_takes_its_batch_dims_from_the_observation_spec() -> None:
    observation = Composite(action_mask=Binary(6, shape=(32, 6)), shape=(32,))
    head = make_head(Categorical(6, shape=(32,)), observation)
    assert isinstance(head, CategoricalHead)
    assert head.mask_key == "action_mask"
    with pytest.raises(ValueError, match=r"expected it to start with the batch dims \[32\]"):
        make_head(Categorical(6), observation)


MASKS: dict[str, tuple[Composite, Composite, Any]] = {
    "next to the action": (
        Composite(action=Categorical(6)),
        Composite(action_mask=Binary(6, dtype=torch.int8)),
        "action_mask",
    ),
    "called mask": (
        Composite(action=Categorical(9)),
        Composite(mask=Binary(9, dtype=torch.bool), board=Unbounded((9,))),
        "mask",
    ),
    "in the observation": (
        Composite(action=Categorical(6)),
        Composite(observation=Composite(action_mask=Binary(6), grid=Unbounded((3, 3)))),
        ("observation", "action_mask"),
    ),
    "in a group, where `mask` means alive": (
        Composite(player=Composite(action=Categorical(9, shape=(1,)), shape=(1,))),
        Composite(
            player=Composite(
                mask=Binary(1, shape=(1,), dtype=torch.bool),
                action_mask=Binary(9, shape=(1, 9), dtype=torch.bool),
                shape=(1,),
            )
        ),
        ("player", "action_mask"),
    ),
    "per dimension": (
        Composite(action=MultiCategorical([5] * 10)),
        Composite(action_mask=Binary(5, shape=(10, 5), dtype=torch.bool)),
        "action_mask",
    ),
    "its own name wins": (
        Composite(kind=Categorical(3), other=Categorical(3)),
        Composite(kind_mask=Binary(3), other_mask=Binary(3)),
        {"kind": "kind_mask", "other": "other_mask"},
    ),
    "beside what holds the action": (
        Composite(action=Composite(club=Categorical(3), swing=Bounded(-1.0, 1.0, (1,)))),
        Composite(club_mask=Binary(3)),
        {("action", "club"): "club_mask", ("action", "swing"): None},
    ),
    "at the root, for all agents": (
        Composite(agents=Composite(action=Categorical(5, shape=(3,)), shape=(3,))),
        Composite(action_mask=Binary(5, shape=(3, 5), dtype=torch.bool)),
        "action_mask",
    ),
    "none": (Composite(action=Categorical(6)), Composite(board=Binary(6)), None),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_found_where_environments_put_them(name: str) -> None:
    action, observation, expected = MASKS[name]
    head = make_head(action, observation)
    if not isinstance(expected, dict):
        expected = {head.leaves[0].action_key: expected}
    assert {leaf.action_key: leaf.mask_key for leaf in head.leaves} == expected


def test_joint_is_stated_not_guessed() -> None:
    action = Composite(action=MultiCategorical([4, 10]))
    observation = Composite(action_mask=Binary(10, shape=(4, 10), dtype=torch.bool))
    with pytest.raises(
        ValueError, match=r"'action_mask': expected .*\[14\] or \[2, 10\].*joint=Tr"
    ):
        make_head(action, observation)
    head = make_head(action, observation, joint=True)
    assert isinstance(head, MultiCategoricalHead)
    assert head.joint
    # with as many dimensions as options the shape says nothing: factored unless stated
    square = Composite(action_mask=Binary(2, shape=(2, 2), dtype=torch.bool))
    for joint in (False, True):
        head = make_head(Composite(action=MultiCategorical([2, 2])), square, joint=joint)
        assert isinstance(head, MultiCategoricalHead)
        assert head.joint == joint


def test_masks_can_be_named_or_left_out() -> None:
    action, observation, _ = MASKS["next to the action"]
    assert make_head(action, observation, mask=False).in_keys == ["action_logits"]
    assert make_head(action, mask=("info", "legal")).in_keys[1] == ("info", "legal")
    assert make_head(action, mask=True).in_keys[1] == "action_mask"
    two, spec, _ = MASKS["its own name wins"]
    head = make_head(two, spec, mask={"kind": "legal", "other": False})
    assert [leaf.mask_key for leaf in head.leaves] == ["legal", None]


def test_options_reach_the_leaves() -> None:
    spec = Composite(kind=Categorical(3), force=Bounded(-1, 1, (2,)))
    head = make_head(
        spec,
        on_empty="neutral",
        free_scale=True,
        validate=False,
        leaf_options={"force": {"free_scale": False, "scale_lb": 0.1}},
    )
    kind, force = head.leaves
    assert isinstance(kind, CategoricalHead)
    assert isinstance(force, TanhNormalHead)
    assert kind.on_empty == "neutral"
    assert not kind.validate
    assert force.raw_scale is None
    assert force.scale_lb == 0.1


def two_candidates() -> Composite:
    return Composite(mask=Binary(6, dtype=torch.bool), legal_actions=Binary(6))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: make_head(Categorical(6), two_candidates()),
            ValueError,
            r"several entries may be its mask: \['mask', 'legal_actions'\]; say which",
        ),
        (
            lambda: make_head(Categorical(6), Composite(action_mask=Binary(7))),
            ValueError,
            r"'action_mask': expected a mask of 'action' of shape \[6\], got \[7\]; the action has"
            r" no such choices: correct one of the specs, or say mask=\{leaf: key or False\}",
        ),
        (
            lambda: make_head(Composite(a=Categorical(2), b=Categorical(2)), mask="m"),
            ValueError,
            r"say which of the leaves \['a', 'b'\]",
        ),
        (
            lambda: make_head(Categorical(6), mask={"acton": "m"}),
            ValueError,
            r"unknown leaves \['acton'\]: expected some of \['action'\]",
        ),
        (
            lambda: make_head(Categorical(6), leaf_options={"action": {"on_emtpy": "neutral"}}),
            TypeError,
            r"unknown options \['on_emtpy'\]",
        ),
        (
            lambda: make_head(Categorical(6), Binary(6)),
            TypeError,
            "observation_spec: expected the environment's Composite, got a Binary",
        ),
        (
            lambda: make_head(Composite(agents=Composite())),
            ValueError,
            "action_spec: expected an action, got none",
        ),
        (
            lambda: make_head(NonTensor((4,))),
            ValueError,
            r"no head for a NonTensor of shape \[4\]; .*register_head\(NonTensor\)",
        ),
        (
            lambda: make_head(Binary(4, shape=(2, 4))),
            ValueError,
            r"discrete actions of shape \[2, 4\]",
        ),
        (
            lambda: make_head(Unbounded((2,), dtype=torch.int64)),
            ValueError,
            "integers without bounds",
        ),
        (
            lambda: make_head(Categorical(3, shape=(2, 2))),
            ValueError,
            r"discrete actions of shape \[2, 2\]",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_with_what_to_do(
    build: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("kind", [OneHot, Categorical])
def test_masks_of_the_moment_do_not_make_agents_different(kind: Any) -> None:
    """OpenSpiel's environments keep the mask of each player in the action spec too."""
    allowed = ([True, True, False], [True, True, True])
    specs = [Composite(action=kind(3, mask=torch.tensor(row))) for row in allowed]
    observed = Composite(
        agents=Composite(action_mask=Binary(3, shape=(2, 3), dtype=torch.bool), shape=(2,))
    )
    head = make_head(Composite(agents=torch.stack(specs)), observation_spec=observed)
    (leaf,) = head.leaves
    assert leaf.mask_key == ("agents", "action_mask")
    assert (specs[0]["action"].mask == torch.tensor(allowed[0])).all()  # the spec is left alone


def test_a_groups_part_of_the_action_spec_keeps_the_groups_name() -> None:
    part = Composite({"action": Categorical(3, shape=(4, 2))}, shape=(4, 2))
    masks = Composite({"action_mask": Binary(3, shape=(4, 2, 3))}, shape=(4, 2))
    observed = Composite({"a": masks}, shape=(4,))
    whole = make_head(Composite({"a": part}, shape=(4,)), observed, group="a")
    own = make_head(part, observed, group="a")
    assert own.in_keys == whole.in_keys == [("a", "action_logits"), ("a", "action_mask")]
    assert own.dist_sample_keys == [("a", "action")]
    with pytest.raises(ValueError, match="expected one that has actions, got 'b'"):
        make_head(part, observed, group="b")
    # the agents of a bare spec would be taken for dims of the action
    with pytest.raises(ValueError, match="expected one that has actions, got 'a'"):
        make_head(part["action"], observed, group="a")
