"""Agents of one group whose action specs differ: each keeps to its own, and reaches all of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
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
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import (
    CategoricalHead,
    CompositeHead,
    Head,
    MultiCategoricalHead,
    NormalHead,
    TanhNormalHead,
    make_head,
)

KEY = ("agents", "action")


def integers(low: Any, high: Any, dtype: torch.dtype = torch.int64) -> Bounded:
    lowest = torch.tensor(low)
    return Bounded(lowest, torch.tensor(high), lowest.shape, dtype=dtype)


INTEGERS: dict[str, list[TensorSpec]] = {
    "categorical": [Categorical(2), Categorical(5), Categorical(1)],
    "homogeneous multi-discrete": [Categorical(4, shape=(2,)), Categorical(3, shape=(2,))],
    "multi-categorical": [MultiCategorical([2, 3]), MultiCategorical([4, 1])],
    "one of three dims": [MultiCategorical([2, 3, 2], dtype=torch.int32) for _ in range(2)]
    + [MultiCategorical([2, 3, 5], dtype=torch.int32)],
    "integers": [integers([0, -2], [1, 3], torch.int16), integers([5, 0], [9, 0], torch.int16)],
    "as many integers, from another start": [integers([0, -2], [2, 1]), integers([4, 0], [6, 3])],
    "one integer": [integers(-128, -120, torch.int8), integers(125, 127, torch.int8)],
    "a vector of one integer": [integers([2], [4]), integers([0], [1])],
}


def group(specs: list[TensorSpec], lead: tuple[int, ...] = ()) -> Composite:
    return Composite(agents=torch.stack([Composite(action=s) for s in specs])).expand(*lead)


def hidden(head: Head, *batch: int) -> TensorDict:
    """Parameters of random features, far from uniform."""
    agents = TensorDict({"hidden": 3 * torch.randn(*batch, 11)}, list(batch))
    td = TensorDict({"agents": agents}, list(batch[:-1]))
    return head.projection(11, ("agents", "hidden"), gain=1.0)(td)


def all_actions(spec: TensorSpec) -> Tensor:
    """What a spec itself says is in it, of all that its dtype might hold near it."""
    box = isinstance(spec, Bounded)
    values = range(int(spec.space.low.min()), int(spec.space.high.max()) + 1) if box else range(6)
    grid = itertools.product(values, repeat=spec.shape.numel())
    tensors = (torch.tensor(row).view(spec.shape).to(spec.dtype) for row in grid)
    return torch.stack([action for action in tensors if spec.is_in(action)])


@pytest.mark.parametrize("joint", [False, True], ids=["factored", "joint"])
@pytest.mark.parametrize("lead", [(), (5,)], ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_keep_to_the_spec_of_their_agent(
    name: str, lead: tuple[int, ...], joint: bool
) -> None:
    specs = INTEGERS[name]
    head = make_head(group(specs, lead), joint=joint)
    assert isinstance(head, (CategoricalHead, MultiCategoricalHead))
    td = hidden(head, 300, *lead, len(specs))
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = head(td)[KEY]
    assert drawn.dtype == specs[0].dtype
    # all of an agent's probability is on what its spec holds, and nothing there has none
    lists = [all_actions(spec) for spec in specs]
    longest = max(map(len, lists))
    rows = torch.stack([own[torch.arange(longest) % len(own)] for own in lists], 1)
    rows = rows.view(longest, *[1] * len(lead), *rows.shape[1:])
    rows = rows.expand(-1, *lead, *[-1] * (rows.ndim - 1 - len(lead)))
    probs = head.get_dist(hidden(head, *lead, len(specs))).log_prob(rows).exp()
    for agent, spec in enumerate(specs):
        actions = drawn.select(1 + len(lead), agent).flatten(0, len(lead))
        assert spec.expand(actions.shape).is_in(actions)
        own = probs[: len(lists[agent]), ..., agent]
        assert (own > 0).all()
        torch.testing.assert_close(own.sum(0), torch.ones(lead))


def mask_shapes(head: Head) -> list[torch.Size]:
    return list(head.leaves[0].mask_shapes)


@pytest.mark.parametrize("joint", [False, True], ids=["factored", "joint"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8], ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_a_mask_takes_choices_from_those_that_an_agent_has(
    name: str, dtype: torch.dtype, joint: bool
) -> None:
    specs = INTEGERS[name]
    n = len(specs)
    for shape in mask_shapes(make_head(group(specs), joint=joint)):
        observed = Binary(shape[-1], shape=(n, *shape), dtype=torch.bool)
        observation = Composite(agents=Composite(action_mask=observed, shape=(n,)))
        head = make_head(group(specs), observation, joint=joint)
        assert head.in_keys[-1] == ("agents", "action_mask")
        td = hidden(head, 50, n)
        mask = torch.rand(50, n, *shape) < 0.6
        first = [0] * len(shape) if joint else [slice(None)] * (len(shape) - 1) + [0]
        mask[(..., *first)] = True
        if len(shape) == 1 and not joint and isinstance(head, MultiCategoricalHead):
            mask[..., torch.tensor([0, *head.nvec[:-1]]).cumsum(0)] = True
        td["agents", "action_mask"] = mask.to(dtype)
        with set_exploration_type(ExplorationType.RANDOM):
            drawn = head(td)[KEY]
        for agent, spec in enumerate(specs):
            low = spec.space.low if isinstance(spec, Bounded) else 0
            for action, row in zip(drawn[:, agent], mask[:, agent], strict=True):
                assert spec.is_in(action)
                assert legal(row, (action.long() - low).view(-1).tolist(), head, joint)


def legal(row: Tensor, choice: list[int], head: Head, joint: bool) -> bool:
    """Read a mask of any shape, one option at a time."""
    if joint or len(choice) == 1:
        return bool(row[tuple(choice)] if row.ndim == len(choice) else row[0, choice[0]])
    if row.ndim == 2:
        return all(bool(row[d, option]) for d, option in enumerate(choice))
    assert isinstance(head, MultiCategoricalHead)
    return all(bool(r[c]) for r, c in zip(row.split(list(head.nvec)), choice, strict=True))


def test_environments_are_read_once_and_agents_each() -> None:
    one = group([integers([0, -2], [1, 3]), integers([5, 0], [9, 0])])
    for spec in (one, one.expand(4096), torch.stack([one, one.clone()]).expand(7, 2)):
        head = make_head(spec)
        assert isinstance(head, MultiCategoricalHead)
        assert head.start is not None
        assert head.start.first.tolist()[-2:] in ([[0, -2], [5, 0]], [[[0, -2], [5, 0]]] * 2)
    wide = Composite(action=Bounded(-1.0, 1.0, (4096, 3, 2)), shape=(4096, 3))
    box = make_head(wide)
    assert isinstance(box, TanhNormalHead)
    assert box.event_shape == torch.Size([2])


def test_the_agents_have_to_be_the_last_batch_dims() -> None:
    head = make_head(Composite(action=torch.stack([Categorical(2), Categorical(3)]), shape=(2,)))
    for shape in ((5, 3), (2, 1, 3), (3,)):
        with pytest.raises(ValueError, match=r"'action_logits': expected shape \[..., 2, 3\]"):
            head(TensorDict({"action_logits": torch.zeros(shape)}, list(shape[:-1])))
    starts = [integers(0, 2), integers(4, 6)]
    head = make_head(Composite(action=torch.stack(starts), shape=(2,)))
    with pytest.raises(ValueError, match=r"expected shape \[..., 2, 3\], got \[1, 3\]"):
        head(TensorDict({"action_logits": torch.zeros(1, 3)}, [1]))


def test_numbers_that_differ_between_agents_are_no_parent() -> None:
    head = make_head(Composite(kind=torch.stack([integers(0, 2), integers(4, 6)]), shape=(2,)))
    with pytest.raises(
        ValueError, match=r"'kind' is not one choice; .* starts at the same number for"
    ):
        CompositeHead(*head.leaves, NormalHead("force", (1,), when={"kind": 1}))
    after = NormalHead("force", (1,), after=("kind",), enumerate_parents=True)
    with pytest.raises(ValueError, match="infinitely many values, or others for each agent"):
        CompositeHead(*head.leaves, after)


STACKED: dict[str, tuple[list[TensorSpec], type[Head]]] = {
    "choices": ([Categorical(2), Categorical(5)], MultiCategoricalHead),
    "integers": ([integers(-1, 1), integers(3, 4)], MultiCategoricalHead),
    "boxes": ([Bounded(-1.0, 1.0, (2,)), Bounded(0.0, 3.0, (2,))], TanhNormalHead),
}


@pytest.mark.parametrize("name", STACKED)
@pytest.mark.parametrize("batch", [(), (7,)], ids=str)
def test_a_stack_without_batch_dims_is_one_action(name: str, batch: tuple[int, ...]) -> None:
    parts, cls = STACKED[name]
    spec = torch.stack(parts)
    head = make_head(Composite(action=spec.expand(*batch, *spec.shape), shape=batch))
    assert type(head) is cls
    td = TensorDict({"hidden": 3 * torch.randn(50, *batch, 11)}, [50, *batch])
    with set_exploration_type(ExplorationType.RANDOM):
        td = head(head.projection(11, gain=1.0)(td))
    assert td["action_log_prob"].shape == td.batch_size
    assert all(spec.is_in(action) for action in td["action"].flatten(0, len(batch)))


def stacked(*specs: TensorSpec) -> Composite:
    return torch.stack([Composite(a=spec) for spec in specs])


ONE_BY_ONE = "or build one head, actor and loss per kind of agent"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            stacked(OneHot(5), OneHot(3)),
            r"'a': expected actions of one shape for all agents, got \[5\] and \[3\], which one"
            " tensor cannot hold; encode the actions as integers instead of one-hots,"
            f" {ONE_BY_ONE}",
        ),
        (
            stacked(MultiOneHot([2, 3]), MultiOneHot([2, 2])),
            r"got \[5\] and \[4\], which one tensor cannot hold; encode",
        ),
        (
            stacked(MultiOneHot([2, 3]), MultiOneHot([3, 2])),
            r"expected one-hots of one nvec for all agents, got \[2, 3\] and \[3, 2\], where one"
            rf" entry stands for different options; encode the actions as integers, {ONE_BY_ONE}",
        ),
        (
            stacked(Binary(2), Binary(3), Binary(2)),
            r"got \[2\] and \[3\], which one tensor cannot hold; pad the actions to one shape,"
            f" {ONE_BY_ONE}",
        ),
        (
            stacked(MultiCategorical([2, 3]), MultiCategorical([2, 3, 4])),
            r"got \[2\] and \[3\], which one tensor cannot hold; pad",
        ),
        (
            stacked(Bounded(-1, 1, (2,)), Bounded(-1, 1, (1,))),
            r"got \[2\] and \[1\], which one tensor cannot hold; pad",
        ),
        (
            torch.stack([Composite(a=Categorical(3), b=Binary(2)), Composite(a=Categorical(3))]),
            "only some agents of a group have 'b'; build one head",
        ),
    ],
)
def test_agents_that_no_one_head_can_act_for_are_refused(spec: TensorSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_head(spec)


def test_masks_of_unequal_width_have_to_be_padded() -> None:
    action, observed = group([Categorical(2), Categorical(3)]), [Binary(2), Binary(3)]
    masks = torch.stack([Composite(action_mask=mask) for mask in observed])
    with pytest.raises(ValueError, match=r"of shape \[2, 3\], got \[2, -1\]; pad the masks of all"):
        make_head(action, Composite(agents=masks))
