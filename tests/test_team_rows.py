"""Teams: one advantage for all agents, and rows that are one agent at one step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdheads import CategoricalHead, PPOLoss, make_actor
from tests.batches import gradients, move
from tests.cases import LOSSES, LossCase, case_ids

AGENTS, N = 5, 3
all_losses = pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
both = pytest.mark.parametrize("aggregate", ["sum", "none"])


def team(*batch: int, mask: bool = False) -> tuple[Any, TensorDict]:
    body = TensorDictModule(nn.Linear(4, 64), [("agents", "observation")], [("agents", "hidden")])
    head = CategoricalHead(("agents", "action"), N, mask=mask)
    actor = make_actor(body, head, in_key=("agents", "hidden"), gain=1.0).double()
    inner = {"observation": torch.randn(*batch, AGENTS, 4, dtype=torch.float64)}
    if mask:
        inner["action_mask"] = torch.ones(*batch, AGENTS, N, dtype=torch.bool)
    td = TensorDict({"agents": TensorDict(inner, [*batch, AGENTS])}, batch)
    td = actor(td).detach()
    move(actor)
    return actor, td


def expected(actor: Any, td: TensorDict, advantage: Tensor) -> Tensor:
    """Minus the mean of ratio times advantage, ``[*B, 1]`` to be given to every agent."""
    new = actor.get_dist(td.clone()).log_prob(td["agents", "action"])
    ratio = (new - td["agents", "action_log_prob"]).exp()
    return -(ratio * advantage).mean()


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_team_advantage_is_normalised_before_it_is_given_to_the_agents(rows: int) -> None:
    actor, td = team(rows)
    td["advantage"] = torch.randn(rows, 1, dtype=torch.float64)
    scaled = td["advantage"]
    if rows > 1:
        scaled = (scaled - scaled.mean()) / scaled.std()
    out = PPOLoss(actor, normalize_advantage=True)(td)
    torch.testing.assert_close(out["loss_objective"], expected(actor, td, scaled))


@pytest.mark.parametrize(("exclude", "dims"), [((-2,), (0,)), ((0,), (1,)), ((1,), (0,))])
def test_dims_that_are_kept_apart_are_those_of_the_stored_advantage(
    exclude: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    actor, td = team(4, 6)
    td["advantage"] = advantage = torch.randn(4, 6, 1, dtype=torch.float64)
    scaled = (advantage - advantage.mean(dims, keepdim=True)) / advantage.std(dims, keepdim=True)
    loss = PPOLoss(actor, normalize_advantage=True, normalize_advantage_exclude_dims=exclude)
    torch.testing.assert_close(loss(td)["loss_objective"], expected(actor, td, scaled))


def test_dead_agents_do_not_weigh_a_team_advantage() -> None:
    actor, td = team(6)
    td["advantage"] = advantage = torch.randn(6, 1, dtype=torch.float64)
    td["agents", "mask"] = torch.rand(6, AGENTS) < 0.5
    td["agents", "mask"][0] = False
    td["agents", "mask"][1:, 0] = True
    loss = PPOLoss(actor, normalize_advantage=True)
    loss.loss_mask_key = ("agents", "mask")
    scaled = (advantage - advantage[1:].mean()) / advantage[1:].std()
    new = actor.get_dist(td.clone()).log_prob(td["agents", "action"])
    ratio = (new - td["agents", "action_log_prob"]).exp()
    found = loss(td)["loss_objective"]
    torch.testing.assert_close(found, -(ratio * scaled)[td["agents", "mask"]].mean())


@all_losses
@both
@pytest.mark.parametrize("place", ["beside", "at the root"])
@pytest.mark.parametrize("garbage", [math.nan, 1e9])
def test_what_a_dead_agent_holds_reaches_no_parameter(
    kind: LossCase, aggregate: str, place: str, garbage: float
) -> None:
    actor, td = team(6, mask=True)
    value = TensorDictModule(nn.Linear(4, 1), [("agents", "observation")], ["state_value"]).double()
    td["advantage"] = torch.randn(6, AGENTS, 1, dtype=torch.float64)
    td["value_target"] = torch.randn(6, AGENTS, 1, dtype=torch.float64)
    key: Any = ("agents", "mask") if place == "beside" else "alive"
    td[key] = torch.rand(6, AGENTS) < 0.7
    dead = ~td[key]
    dirty = td.clone()
    for name in ("advantage", "value_target"):
        dirty[name][dead] = garbage
    if place == "beside":  # what networks read is known to be an agent's beside the mask only
        dirty["agents", "observation"][dead] = math.nan
    dirty["agents", "action_mask"][dead] = False
    dirty["agents", "action_logits"][dead] = garbage
    dirty["agents", "action_log_prob"][dead] = garbage
    loss = kind.build(actor, value, aggregate=aggregate, normalize_advantage=True)
    loss.loss_mask_key = key
    clean, clean_grad = gradients(loss, td)
    found, found_grad = gradients(loss, dirty)
    assert sum(grad.abs().sum() for grad in clean_grad.values()) > 0.01
    for name, figure in clean.items(True, True):
        torch.testing.assert_close(found[name], figure)
    for name, grad in clean_grad.items():
        torch.testing.assert_close(found_grad[name], grad)


def test_a_mask_over_time_that_the_tensordict_does_not_have_as_a_batch_dim() -> None:
    body = TensorDictModule(nn.Linear(4, 64), ["observation"], ["hidden"])
    actor = make_actor(body, CategoricalHead("action", N), gain=1.0)
    td = TensorDict({"observation": torch.randn(4, 6, 4)}, [4])
    td = actor(td).detach()
    move(actor)
    td["valid"] = torch.rand(4, 6) < 0.7
    td["advantage"] = torch.randn(4, 6, 1)
    loss = PPOLoss(actor)
    loss.loss_mask_key = "valid"
    clean, clean_grad = gradients(loss, td)
    td["advantage"][~td["valid"]] = math.nan
    found, found_grad = gradients(loss, td)
    torch.testing.assert_close(found["loss_objective"], clean["loss_objective"])
    for name, grad in clean_grad.items():
        torch.testing.assert_close(found_grad[name], grad)
