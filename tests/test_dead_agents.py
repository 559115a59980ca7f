"""What the rows of dead agents, and padded ones, hold before the advantage is computed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdheads import CategoricalHead, ClipPPOLoss, make_actor, make_group_losses
from tests.test_groups import AGENTS, TERMS, B, T, grads, networks, rollout
from tests.versions import needs_multi_agent_gae

DIES = 3  # the first agent of every group is dead from this step on


def with_deaths(actors: dict[str, Any], done: str) -> TensorDict:
    """A batch in which the first agent of each group dies; done is the root's or each agent's."""
    td = rollout(actors)
    for group, agents in AGENTS.items():
        alive = torch.ones(B, T + 1, agents, dtype=torch.bool)
        alive[:, DIES:, 0] = False
        td[group, "mask"], td["next", group, "mask"] = alive[:, :-1], alive[:, 1:]
        if done == "agent":
            ends = td["next", "done"].unsqueeze(-2) | ~alive[:, 1:].unsqueeze(-1)
            td["next", group, "done"], td["next", group, "terminated"] = ends, ends.clone()
    return td


def dirty(td: TensorDict, content: float) -> TensorDict:
    td = td.clone()
    for group in AGENTS:
        td[group, "observation"][~td[group, "mask"]] = content
        td["next", group, "observation"][~td["next", group, "mask"]] = content
        td["next", group, "reward"][~td[group, "mask"]] = content
    return td


def learnt(td: TensorDict, estimator: str, first: bool, **options: Any) -> dict[str, Tensor]:
    """Gradients of all parameters; the advantage is computed first, or by the loss itself."""
    torch.manual_seed(3)
    losses = make_group_losses(AGENTS, *networks(), alive="mask", **options)
    losses.make_value_estimator(estimator, gamma=0.9, lmbda=0.8)
    batch = td.clone()
    out = losses(losses.estimate(batch) if first else batch)
    sum(out[term] for term in TERMS).backward()
    found = grads(losses)
    assert found
    assert all(grad.isfinite().all() for grad in found.values())
    return found


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("done", ["agent", "root"])
@pytest.mark.parametrize("estimator", ["gae", pytest.param("magae", marks=needs_multi_agent_gae)])
def test_with_the_living_in_the_critic_what_the_dead_hold_changes_no_parameter(
    estimator: str, done: str, first: bool
) -> None:
    torch.manual_seed(0)
    td = with_deaths(networks()[0], done)
    clean, *others = (
        learnt(dirty(td, content), estimator, first, alive_in_critic=True)
        for content in (0.0, 7.0, math.nan, math.inf)
    )
    for other in others:
        for name, grad in clean.items():
            assert torch.equal(grad, other[name]), name


@pytest.mark.parametrize("first", [True, False])
def test_with_the_dead_in_the_critic_nan_is_zero(first: bool) -> None:
    torch.manual_seed(0)
    td = with_deaths(networks()[0], "agent")
    clean, *others = (learnt(dirty(td, content), "gae", first) for content in (0.0, math.nan))
    for name, grad in clean.items():
        assert torch.equal(grad, others[0][name]), name


def test_nan_of_the_living_is_not_hidden() -> None:
    torch.manual_seed(0)
    td = with_deaths(actors := networks()[0], "agent")
    td["next", "flyers", "reward"][0, 0, 1] = math.nan  # alive
    losses = make_group_losses(AGENTS, actors, networks()[1], alive="mask", alive_in_critic=True)
    assert losses.estimate(td)["flyers", "advantage"].isnan().any()


def test_the_batch_keeps_what_it_held() -> None:
    torch.manual_seed(0)
    td = dirty(with_deaths(actors := networks()[0], "root"), 7.0)
    losses = make_group_losses(AGENTS, actors, networks()[1], alive="mask", alive_in_critic=True)
    before = td.clone()
    losses.estimate(td)
    for key, value in before.items(True, True):
        torch.testing.assert_close(td[key], value, rtol=0, atol=0)
    assert ("next", "flyers", "done") not in td.keys(True, True)


@pytest.mark.parametrize("content", [5.0, math.nan])
def test_padded_rows_behind_an_end_reach_no_advantage(content: float) -> None:
    torch.manual_seed(0)
    body = TensorDictModule(nn.Linear(4, 64), ["observation"], ["hidden"])
    actor = make_actor(body, CategoricalHead("action", 3))
    critic = TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])
    following = {"observation": torch.randn(2, 9, 4), "reward": torch.randn(2, 9, 1)}
    td = TensorDict({"observation": torch.randn(2, 9, 4), "next": following}, [2, 9])
    td["next", "done"] = torch.zeros(2, 9, 1, dtype=torch.bool)
    td["next", "done"][:, [5, 8]] = True
    with torch.no_grad():
        actor(td)
    td["collector", "mask"] = torch.ones(2, 9, dtype=torch.bool)
    td["collector", "mask"][0, 6:] = False
    loss = ClipPPOLoss(actor, critic)
    clean = loss(td)
    td["next", "reward"][0, 6:] = content
    td["next", "observation"][0, 6:] = content
    found = loss(td)
    for term in TERMS:
        torch.testing.assert_close(found[term], clean[term], rtol=0, atol=0)


def test_rows_that_an_estimator_leaves_out_are_those_of_each_group() -> None:
    torch.manual_seed(0)
    actors, critics = networks()
    td = rollout(actors)
    for group, agents in AGENTS.items():
        ends = torch.zeros(B, T, agents, 1, dtype=torch.bool)
        ends[:, -1] = True
        if group == "walkers":  # truncated on the way, which shifts what follows
            ends[:, 1] = True
        td["next", group, "done"] = ends
        td["next", group, "terminated"] = torch.zeros_like(ends)
    losses = make_group_losses(AGENTS, actors, critics, functional=False)
    losses.make_value_estimator("gae", gamma=0.9, lmbda=0.8, shifted=True)
    alone = losses(td.clone())
    batch = losses.estimate(td.clone())
    assert not batch["walkers", "shifted_valid"].all()
    in_two_steps = losses(batch)
    for key in ("loss_objective", "loss_critic", ("walkers", "loss_critic")):
        torch.testing.assert_close(in_two_steps[key], alone[key])
