"""TorchRL's multi-agent networks under group losses: shared or own parameters, central critics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MultiAgentMLP

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    GroupLosses,
    KLPENPPOLoss,
    NormalHead,
    PPOLoss,
    make_group_losses,
)
from tests.versions import needs_multi_agent_gae

B, T, N, F, CHOICES = 3, 5, 4, 6, 7
GAMMA, LMBDA = 0.9, 0.8
LOSSES = [PPOLoss, ClipPPOLoss, KLPENPPOLoss]


def networks(*, shared: bool, central: bool) -> tuple[Any, Any]:
    """A masked move and a force for each of N agents, and a critic."""
    head = CompositeHead(
        CategoricalHead(("team", "move"), CHOICES, mask=True), NormalHead(("team", "force"), (2,))
    )
    raw = MultiAgentMLP(
        F, head.num_params, N, centralized=False, share_params=shared, num_cells=[8]
    )
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(raw, [("team", "observation")], [("team", "params")]),
        head.split_params(("team", "params")),
        head,
    )
    value = MultiAgentMLP(F, 1, N, centralized=central, share_params=shared, num_cells=[8])
    critic = TensorDictModule(value, [("team", "observation")], [("team", "state_value")])
    return actor.double(), critic.double()


def make(kind: Any = PPOLoss, *, shared: bool, central: bool, **options: Any) -> GroupLosses:
    actor, critic = networks(shared=shared, central=central)
    losses = make_group_losses(["team"], {"team": actor}, {"team": critic}, kind, **options)
    return losses.make_value_estimator(gamma=GAMMA, lmbda=LMBDA)


def observed() -> TensorDict:
    mask = torch.rand(B, T, N, CHOICES) < 0.5
    mask[..., 0] = True
    team = {"observation": torch.randn(B, T, N, F, dtype=torch.float64), "move_mask": mask}
    return TensorDict({"team": TensorDict(team, [B, T, N])}, [B, T])


def rollout(losses: GroupLosses) -> TensorDict:
    td = observed()
    loss = losses["team"]
    params = loss.actor_network_params.to_module(loss.actor_network)
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad(), params:
        loss.actor_network(td)
    td["next"] = observed()
    td["next", "reward"] = torch.randn(B, T, 1, dtype=torch.float64)
    done = torch.zeros(B, T, 1, dtype=torch.bool)
    done[:, -1] = done[1, 2] = True
    td["next", "done"], td["next", "terminated"] = done, done & (torch.arange(B) > 0).view(B, 1, 1)
    return td


def gradient(losses: GroupLosses, td: TensorDict) -> dict[str, Tensor]:
    out = losses(td)
    losses.zero_grad()
    sum(out[f"loss_{term}"] for term in ("objective", "entropy", "critic")).backward()
    return {n: p.grad.clone() for n, p in losses.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("central", [True, False])
def test_every_parameter_learns_and_the_first_ratio_is_one(
    kind: Any, shared: bool, central: bool
) -> None:
    losses = make(kind, shared=shared, central=central)
    td = rollout(losses)
    losses.estimate(td)
    out = losses(td)
    assert out["team", "max_ratio"] == 1
    found = gradient(losses, td)
    assert set(found) == {n for n, p in losses.named_parameters() if p.requires_grad}
    assert all(x.any() for x in found.values())


def test_with_own_parameters_an_agent_learns_from_its_own_rows_alone() -> None:
    losses = make(shared=False, central=False)
    td = rollout(losses)
    losses.estimate(td)
    before = gradient(losses, td)
    td["team", "advantage"][:, :, 2] += 3.0
    after = gradient(losses, td)
    actor = [name for name in before if "actor" in name]
    assert actor
    for name in actor:  # stacked: one slice per agent
        same = [torch.equal(before[name][i], after[name][i]) for i in range(N)]
        assert same == [True, True, False, True], name


def test_shared_parameters_get_the_mean_of_what_the_agents_would_get_alone() -> None:
    losses = make(shared=True, central=False)
    td = rollout(losses)
    losses.estimate(td)
    together = gradient(losses, td)
    alone = make(shared=True, central=False)
    alone.load_state_dict(losses.state_dict())
    parts = []
    for agent in range(N):
        loss = alone["team"]
        one = td.clone()
        one["agent"] = torch.arange(N).eq(agent).expand(B, T, N)
        loss.loss_mask_key = "agent"
        parts.append(gradient(alone, one))
    for name, value in together.items():
        mean = torch.stack([part[name] for part in parts]).mean(0)
        torch.testing.assert_close(value, mean, rtol=1e-10, atol=1e-13)


def gae(reward: Tensor, value: Tensor, after: Tensor, done: Tensor, end: Tensor) -> Tensor:
    """Generalised advantage of one agent, step by step from the last one."""
    advantage = torch.zeros_like(reward)
    carry = torch.zeros_like(reward[:, 0])
    for t in reversed(range(reward.shape[1])):
        delta = reward[:, t] + GAMMA * after[:, t] * ~end[:, t] - value[:, t]
        carry = delta + GAMMA * LMBDA * ~done[:, t] * carry
        advantage[:, t] = carry
    return advantage


@pytest.mark.parametrize("estimator", ["GAE", pytest.param("MAGAE", marks=needs_multi_agent_gae)])
@pytest.mark.parametrize("central", [True, False])
def test_a_team_reward_gives_each_agent_the_advantage_over_its_own_value(
    estimator: str, central: bool
) -> None:
    losses = make(shared=False, central=central)
    losses.make_value_estimator(estimator, gamma=GAMMA, lmbda=LMBDA)
    td = rollout(losses)
    losses.estimate(td)
    loss = losses["team"]
    with torch.no_grad(), loss.critic_network_params.to_module(loss.critic_network):
        value = loss.critic_network(td.clone())["team", "state_value"]
        after = loss.critic_network(td["next"].clone())["team", "state_value"]
    reward, done, end = (td["next", name] for name in ("reward", "done", "terminated"))
    single = {"rtol": 1e-5, "atol": 1e-5}  # TorchRL's GAE keeps its discounts in float32
    for agent in range(N):
        expected = gae(reward, value[:, :, agent], after[:, :, agent], done, end)
        torch.testing.assert_close(td["team", "advantage"][:, :, agent], expected, **single)
        target = expected + value[:, :, agent]
        torch.testing.assert_close(td["team", "value_target"][:, :, agent], target, **single)


def test_a_central_critic_looks_at_every_agent_and_the_actor_does_not() -> None:
    losses = make(shared=True, central=True)
    loss = losses["team"]
    td = rollout(losses)
    td["team", "observation"].requires_grad_()
    with loss.critic_network_params.to_module(loss.critic_network):
        value = loss.critic_network(td.clone())["team", "state_value"]
    (seen,) = torch.autograd.grad(value[:, :, 0].sum(), td["team", "observation"])
    assert seen.flatten(0, 1).any(-1).all()
    with loss.actor_network_params.to_module(loss.actor_network):
        score = loss.actor_network.get_dist(td.clone()).log_prob(td)["team", "move_log_prob"]
    (seen,) = torch.autograd.grad(score[:, :, 0].sum(), td["team", "observation"])
    assert not seen[:, :, 1:].any()


def test_a_network_for_another_number_of_agents_is_named() -> None:
    losses = make(shared=True, central=True)
    td = rollout(losses)
    losses.estimate(td)
    smaller = td.exclude("team", "next")
    smaller["team"] = td["team"][:, :, :3]
    with pytest.raises(ValueError, match=r"expected input with shape\[-2\]=4"):
        losses(smaller)
