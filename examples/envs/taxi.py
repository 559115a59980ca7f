"""Gymnasium's Taxi-v4: the mask comes in `info`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import Bounded
from torchrl.envs import EnvBase

from envs.common import Task, require


def taxi(num_envs: int) -> EnvBase:
    """Gymnasium's Taxi-v4: fetch a passenger and bring them to their destination.

    The mask comes in Gymnasium's `info`: an info reader puts it into the tensordict. Gymnasium's
    own vector environment is five times faster here than a TorchRL `SerialEnv`; TorchRL does the
    resets, so the vector environment must not.
    """
    gym = require("gymnasium", "gymnasium")
    from torchrl.envs import GymWrapper
    from torchrl.envs.gym_like import default_info_dict_reader

    vector_env = gym.make_vec(
        "Taxi-v4",
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.DISABLED},
    )
    env = GymWrapper(vector_env, categorical_action_encoding=True)
    mask_spec = Bounded(0, 1, shape=(num_envs, 6), dtype=torch.int8)
    env.set_info_dict_reader(default_info_dict_reader(["action_mask"], {"action_mask": mask_spec}))
    return env


def encode_taxi(state: Tensor) -> Tensor:
    """One-hot of the 500 states."""
    return one_hot(state, 500).float()


TAXI = Task(
    make=taxi,
    encode=encode_taxi,
    package="gymnasium",
    settings={
        "total_frames": 500_000,
        "num_envs": 128,
        "frames_per_batch": 8192,
        "minibatch_size": 1024,
        "lr": 3e-3,
        "gamma": 0.95,
    },
)
