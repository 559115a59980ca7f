"""Jumanji: Connector, with a mask per dimension, and BinPack, with a joint one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.envs import EnvBase, LineariseRewards, TransformedEnv

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
    settings={"total_frames": 200_000, "num_envs": 64, "frames_per_batch": 4096},
    observation=BINPACK_OBSERVATION,
    head={"joint": True},
)
