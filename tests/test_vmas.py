"""Two groups of VMAS with different action spaces: head, actor, critic and loss for each."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector

from tdheads import KLPENPPOLoss, make_actor, make_group_losses, make_head
from tests.versions import COLLECTOR_OPTIONS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the environment's own affairs
    pytest.mark.skipif(
        importlib.util.find_spec("vmas") is None,
        reason='the environments come with pip install "tdheads[vmas]"',
    ),
]


def networks(env: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    actors, critics = {}, {}
    for group in env.group_map:
        width = env.observation_spec[group, "observation"].shape[-1]
        obs = [(group, "observation")]
        body = TensorDictModule(nn.Linear(width, 64), obs, [(group, "hidden")])
        head = make_head(env.full_action_spec, env.observation_spec, group=group)
        actors[group] = make_actor(body, head, in_key=(group, "hidden"))
        critics[group] = TensorDictModule(nn.Linear(width, 1), obs, [(group, "state_value")])
    return actors, critics


@pytest.mark.parametrize("continuous", [False, True])
def test_two_groups_train_from_a_collector(continuous: bool) -> None:
    from torchrl.envs import VmasEnv

    env = VmasEnv("simple_speaker_listener", num_envs=8, continuous_actions=continuous, seed=0)
    torch.manual_seed(0)
    actors, critics = networks(env)
    assert {group: actor[-1].out_keys[0] for group, actor in actors.items()} == {
        "speaker": ("speaker", "action"),
        "listener": ("listener", "action"),
    }
    policy = TensorDictSequential(*actors.values())
    collector = Collector(env, policy, frames_per_batch=160, total_frames=320, **COLLECTOR_OPTIONS)
    losses = make_group_losses(env.group_map, actors, critics, KLPENPPOLoss)
    optimizer = torch.optim.Adam(losses.parameters(), lr=1e-2)
    for batch in collector:
        losses.estimate(batch)
        first = losses(batch)
        for group in env.group_map:
            # a matrix product of 160 rows rounds otherwise than one of 8
            assert first[group, "max_ratio"].item() == pytest.approx(1, abs=1e-5)
            assert first[group, "kl"].item() == pytest.approx(0, abs=1e-6)
            assert env.full_action_spec[group, "action"].is_in(batch[:, 0][group, "action"])
        for _ in range(3):
            out = losses(batch)
            sum(out[t] for t in ("loss_objective", "loss_entropy", "loss_critic")).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert out["listener", "kl"] > 1e-5
    collector.shutdown()


def test_a_group_that_is_none_is_named() -> None:
    from torchrl.envs import VmasEnv

    env = VmasEnv("simple_speaker_listener", num_envs=2, continuous_actions=False, seed=0)
    with pytest.raises(ValueError, match="group: expected one that has actions, got 'flyer'"):
        make_head(env.full_action_spec, env.observation_spec, group="flyer")
