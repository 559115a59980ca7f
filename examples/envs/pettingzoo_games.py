"""PettingZoo: a game in which one player waits for the other, and one in which agents die."""

from __future__ import annotations

import warnings
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, SerialEnv, TransformedEnv
from torchrl.envs.transforms import Transform

from envs.common import Task, require
from envs.opponent import RandomOpponent


class NothingToChoose(Transform):
    """Makes the mask of a player who waits all False.

    PettingZoo says whose turn it is in `(group, "mask")`, and shows the waiting player a mask in
    which every move is legal.
    """

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        group = next_tensordict[self.group]
        group["action_mask"] = group["action_mask"] & group["mask"].unsqueeze(-1)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)


def wrapped(api: str, game: str, group_map: Any = None, **options: Any) -> EnvBase:
    """A PettingZoo game with masks."""
    pettingzoo = require("pettingzoo", "pettingzoo")
    from torchrl.envs import PettingZooWrapper

    # TorchRL says so of every version but one.
    warnings.filterwarnings("ignore", "PettingZoo in TorchRL is tested using version")
    made = pettingzoo.make(api, game, **options)
    # Without `done_on_any` TorchRL ends a parallel game when the first agent dies.
    return PettingZooWrapper(made, use_mask=True, group_map=group_map, done_on_any=False)


def connect_four(num_envs: int) -> EnvBase:
    """PettingZoo's Connect Four: the first player learns, the second plays at random.

    Both players take part in every step, and one of them waits. The learner's value is defined
    at both kinds of step, so that GAE runs over all of them with its own reward; in the policy
    loss the steps at which it waits do not count, because the head is built with
    `on_empty="neutral"`.
    """

    def one() -> EnvBase:
        groups = {"learner": ["player_0"], "opponent": ["player_1"]}
        env = wrapped("aec", "classic/connect_four-v3", group_map=groups)
        env = TransformedEnv(env, NothingToChoose("learner"))
        return env.append_transform(RandomOpponent("opponent"))

    return SerialEnv(num_envs, one)


def encode_connect_four(board: Tensor) -> Tensor:
    """`[*B, 6, 7, 2]` -> flat planes."""
    return board.flatten(-3).float()


CONNECT_FOUR = Task(
    make=connect_four,
    encode=encode_connect_four,
    package="pettingzoo",
    settings={
        "total_frames": 40_000,
        "num_envs": 8,
        "frames_per_batch": 1024,
        "minibatch_size": 256,
        "epochs": 8,
        "hidden": 128,
        "eval_episodes": 200,
    },
    groups=("learner",),
    observation=(("observation", "observation"),),
    head={"on_empty": "neutral"},
    board_game=True,
)


def knights_archers_zombies(num_envs: int) -> EnvBase:
    """PettingZoo's Knights Archers Zombies: two archers and a knight, all moving at once.

    An agent that a zombie reached is dead: `(group, "mask")` is False for it to the end of the
    episode, which comes when all are dead, a zombie passes, or 200 steps are over. Killing a
    zombie gives the killer 1.
    """
    require("pygame", "pettingzoo")

    def one() -> EnvBase:
        options = {"num_archers": 2, "num_knights": 1, "max_zombies": 8, "max_arrows": 5}
        options |= {"spawn_delay": 5, "max_cycles": 200}
        return wrapped("parallel", "butterfly/knights_archers_zombies-v11", **options)

    return SerialEnv(num_envs, one)


def encode_zombies(observation: Tensor) -> Tensor:
    """`[*B, objects, 5]` -> flat."""
    return observation.flatten(-2).float()


KNIGHTS_ARCHERS_ZOMBIES = Task(
    make=knights_archers_zombies,
    encode=encode_zombies,
    package="pettingzoo",
    settings={
        "total_frames": 12_288,
        "num_envs": 8,
        "frames_per_batch": 1024,
        "minibatch_size": 256,
        "epochs": 8,
        "lr": 2e-3,
        "eval_episodes": 32,
    },
    groups=("archer", "knight"),
    mask=None,
    alive="mask",
    drawn=True,
)
