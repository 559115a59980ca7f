"""Jumanji: a plain mask, one per dimension, one over pairs, and one of each agent."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, LineariseRewards, TransformedEnv
from torchrl.envs.transforms import Transform

from envs.common import Task, require


def connector(num_envs: int) -> EnvBase:
    """Jumanji's Connector: three agents draw a path on a 6x6 grid, each to its own target.

    One policy moves the three at once: the action is MultiCategorical, and each dimension has a
    mask of its own, `[3, 5]`. The rewards of the three are summed.
    """
    jumanji = require("jumanji", "jumanji")
    from jumanji.environments.routing.connector.generator import RandomWalkGenerator
    from torchrl.envs import JumanjiWrapper

    game = jumanji.make("Connector-v3", generator=RandomWalkGenerator(grid_size=6, num_agents=3))
    env = JumanjiWrapper(game, batch_size=[num_envs])
    env.set_seed(0)  # Jumanji's specs cannot be read before a seed is set
    return TransformedEnv(env, LineariseRewards(in_keys=["reward"]))


def encode_connector(grid: Tensor) -> Tensor:
    """One-hot of the ten kinds of cell: empty, and path, head and target of each agent."""
    return one_hot(grid.long(), 10).flatten(-3).float()


def binpack(num_envs: int) -> EnvBase:
    """Jumanji's BinPack: put 20 items into a container, one per step.

    The action is the pair (space, item), and the mask covers all pairs, `[40, 20]`: whether an
    item can be chosen depends on the space, so that one mask per dimension could not say it.
    """
    jumanji = require("jumanji", "jumanji")
    from torchrl.envs import JumanjiWrapper

    env = JumanjiWrapper(jumanji.make("BinPack-v2"), batch_size=[num_envs])
    env.set_seed(0)
    return env


BINPACK_OBSERVATION = (
    *(("ems", corner) for corner in ("x1", "x2", "y1", "y2", "z1", "z2")),
    *(("items", side) for side in ("x_len", "y_len", "z_len")),
    "ems_mask",
    "items_mask",
)
"""Corners of the free spaces, sides of the items, and which of both are there."""


def encode_binpack(*entries: Tensor) -> Tensor:
    return torch.cat([entry.float() for entry in entries], -1)


CONNECTOR = Task(
    make=connector,
    encode=encode_connector,
    package="jumanji",
    settings={
        "total_frames": 300_000,
        "num_envs": 64,
        "frames_per_batch": 4096,
        "lr": 2.5e-3,
        "hidden": 128,
    },
    observation=("grid",),
)

BINPACK = Task(
    make=binpack,
    encode=encode_binpack,
    package="jumanji",
    settings={"total_frames": 200_000, "num_envs": 64, "frames_per_batch": 4096},
    observation=BINPACK_OBSERVATION,
    head={"joint": True},
)


def snake(num_envs: int) -> EnvBase:
    """Jumanji's Snake on a 6x6 grid; the mask forbids the wall and the snake's own body.

    A snake that has nowhere to go ends the episode, with a mask that is all False.
    """
    jumanji = require("jumanji", "jumanji")
    from torchrl.envs import JumanjiWrapper

    game = jumanji.make("Snake-v1", num_rows=6, num_cols=6, time_limit=200)
    env = JumanjiWrapper(game, batch_size=[num_envs])
    env.set_seed(0)
    return env


def encode_snake(grid: Tensor) -> Tensor:
    """`[*B, 6, 6, 5]` -> flat."""
    return grid.flatten(-3).float()


def foraging(num_envs: int) -> EnvBase:
    """Jumanji's LevelBasedForaging: two agents on a 6x6 grid collect two pieces of food.

    Food of a level above one agent's own needs both beside it. An episode has 50 steps at most,
    and what all agents earn in it sums to 1 when everything is eaten.
    """
    jumanji = require("jumanji", "jumanji")
    from jumanji.environments.routing.lbf.generator import RandomGenerator
    from torchrl.envs import JumanjiWrapper

    generator = RandomGenerator(grid_size=6, fov=6, num_agents=2, num_food=2)
    game = jumanji.make("LevelBasedForaging-v0", generator=generator, time_limit=50)
    env = JumanjiWrapper(game, batch_size=[num_envs])
    env.set_seed(0)
    return TransformedEnv(env, AgentGroup())


class AgentGroup(Transform):
    """Moves action, mask, view and reward of each agent into the group `agents`.

    TorchRL shows Jumanji's agents as the dimensions of one MultiCategorical action. As a group,
    each has a row of its own, which a policy that they share reads and acts on.
    """

    OBSERVATIONS = ("agents_view", "action_mask")

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for name in self.OBSERVATIONS:
            next_tensordict.rename_key_(name, ("agents", name))
        reward = next_tensordict.pop("reward", None)
        if reward is not None:
            next_tensordict["agents", "reward"] = reward.unsqueeze(-1)
        mask = next_tensordict["agents", "action_mask"]
        next_tensordict["agents"].batch_size = mask.shape[:-1]
        return next_tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", tensordict["agents", "action"])

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        entries = {name: observation_spec[name] for name in self.OBSERVATIONS}
        agents = entries["action_mask"].shape[:-1]
        for name in self.OBSERVATIONS:
            del observation_spec[name]
        observation_spec["agents"] = Composite(entries, shape=agents)
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        agents = reward_spec["reward"].shape
        del reward_spec["reward"]
        reward = Unbounded(shape=(*agents, 1))
        reward_spec["agents"] = Composite(reward=reward, shape=agents)
        return reward_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        actions = input_spec["full_action_spec"]
        agents, n = actions["action"].shape, int(actions["action"].nvec.unique())
        action = Categorical(n, shape=agents, dtype=actions["action"].dtype)
        actions["agents"] = Composite(action=action, shape=agents)
        del actions["action"]
        return input_spec


SNAKE = Task(
    make=snake,
    encode=encode_snake,
    package="jumanji",
    settings={
        "total_frames": 102_400,
        "num_envs": 64,
        "frames_per_batch": 4096,
        "lr": 2.5e-3,
        "hidden": 128,
    },
    observation=("grid",),
    head={"on_empty": "neutral"},
)

FORAGING = Task(
    make=foraging,
    encode=Tensor.float,
    package="jumanji",
    settings={
        "total_frames": 163_840,
        "num_envs": 64,
        "frames_per_batch": 4096,
        "lr": 2.5e-3,
        "hidden": 128,
    },
    groups=("agents",),
    observation=("agents_view",),
)
