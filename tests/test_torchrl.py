"""The actor and the loss in TorchRL's collectors, operators and trainers' loops."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import TicTacToeEnv, check_env_specs
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import (
    ActorValueOperator,
    LSTMModule,
    SafeProbabilisticTensorDictSequential,
)
from torchrl.objectives.value import GAE

from tdheads import CategoricalHead, ClipPPOLoss, make_actor, make_head
from tests.batches import TERMS
from tests.versions import COLLECTOR_OPTIONS


class BoardFeatures(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, width), nn.Tanh())

    def forward(self, board: torch.Tensor) -> torch.Tensor:
        return self.net(board.flatten(-2).float())


@pytest.fixture
def env() -> Iterator[Any]:
    made = TicTacToeEnv(single_player=True)
    yield made
    made.close()


def tictactoe_actor(env: Any) -> Any:
    backbone = TensorDictModule(BoardFeatures(), ["board"], ["hidden"])
    head = make_head(env.full_action_spec, env.observation_spec)
    return make_actor(backbone, head, num_features=16, gain=1.0)


def value_net() -> TensorDictModule:
    net = nn.Sequential(BoardFeatures(), nn.Linear(16, 1))
    return TensorDictModule(net, ["board"], ["state_value"])


def test_the_mask_of_the_environment_is_found_and_obeyed(env: Any) -> None:
    actor = tictactoe_actor(env)
    assert actor.in_keys == ["board", "mask"]
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        td = env.rollout(500, actor, break_when_any_done=False)
    taken = td["mask"].gather(-1, td["action"].unsqueeze(-1))
    assert td.shape == torch.Size([500])
    assert taken.all()


def test_collector_gae_buffer_and_loss_make_one_training_step(env: Any) -> None:
    actor, critic = tictactoe_actor(env), value_net()
    loss = ClipPPOLoss(actor, critic, normalize_advantage=True)
    loss.set_keys(reward=("player0", "reward"))
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    advantage.set_keys(reward=("player0", "reward"))
    collector = Collector(env, actor, frames_per_batch=128, total_frames=256, **COLLECTOR_OPTIONS)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(128), sampler=SamplerWithoutReplacement(), batch_size=64
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    before = [p.detach().clone() for p in actor.parameters()]
    for batch in collector:
        assert batch["mask"].gather(-1, batch["action"].unsqueeze(-1)).all()
        first = loss(advantage(batch.clone()))
        # collected one row at a time, scored as a batch: sums are rounded in another order
        assert first["max_ratio"].item() == pytest.approx(1, abs=1e-5)
        buffer.extend(advantage(batch).reshape(-1))
        for minibatch in buffer:
            out = loss(minibatch)
            sum(out[term] for term in TERMS).backward()
            optimizer.step()
            optimizer.zero_grad()
    collector.shutdown()
    assert any((p != q).any() for p, q in zip(before, actor.parameters(), strict=True))


def test_specs_of_the_environment_accept_the_actors_actions(env: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what check_env_specs says of the environment is not ours
        check_env_specs(env)
    with torch.no_grad():
        td = env.rollout(5, tictactoe_actor(env))
    assert env.action_spec.expand(td.shape).is_in(td["action"])


@pytest.mark.parametrize("separate_losses", [False, True])
@pytest.mark.parametrize("functional", [True, False])
def test_actor_and_critic_that_share_their_body(separate_losses: bool, functional: bool) -> None:
    common = TensorDictModule(BoardFeatures(), ["board"], ["hidden"])
    head = CategoricalHead("action", 9, mask="mask")
    # the class of sequence that ActorValueOperator takes for a policy
    policy = SafeProbabilisticTensorDictSequential(head.projection(16), head)
    value = TensorDictModule(nn.Linear(16, 1), ["hidden"], ["state_value"])
    model = ActorValueOperator(common, policy, value)
    td = TensorDict({"board": torch.ones(5, 3, 3), "mask": torch.ones(5, 9)}, [5])
    actor = model.get_policy_operator()
    td = actor(td).detach().exclude("hidden", "action_logits")
    td["advantage"] = td["value_target"] = torch.randn(5, 1)
    options = {"separate_losses": separate_losses, "functional": functional}
    loss = ClipPPOLoss(actor, model.get_value_operator(), **options)
    loss(td)["loss_critic"].backward()
    assert all(p.grad is not None and p.grad.any() for p in value.parameters())
    reached = any(p.grad is not None and (p.grad != 0).any() for p in common.parameters())
    assert reached != separate_losses


def test_a_recurrent_actor_over_time() -> None:
    lstm = LSTMModule(4, 8, in_key="observation", out_key="hidden")
    actor = make_actor(
        TensorDictSequential(lstm), CategoricalHead("action", 3, mask=True), num_features=8
    )
    td = TensorDict({"observation": torch.randn(2, 5, 4)}, [2, 5])
    td["is_init"] = torch.zeros(2, 5, 1, dtype=torch.bool)
    td["is_init"][:, 0] = True
    td["recurrent_state_h"] = td["recurrent_state_c"] = torch.zeros(2, 5, 1, 8)
    td["action_mask"] = torch.rand(2, 5, 3) < 0.7
    td["action_mask"][..., 1] = True
    td["action"] = torch.ones(2, 5, dtype=torch.int64)
    td["action_log_prob"] = torch.zeros(2, 5)
    td["advantage"] = td["value_target"] = torch.randn(2, 5, 1)
    critic = TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])
    out = ClipPPOLoss(actor, critic)(td)
    out["loss_objective"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in lstm.parameters())
