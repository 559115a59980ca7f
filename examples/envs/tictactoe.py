"""TorchRL's TicTacToe: an environment that accepts illegal moves."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite, Unbounded
from torchrl.envs import BatchSizeTransform, EnvBase, TransformedEnv
from torchrl.envs.transforms import Transform

from envs.common import Task


class ZeroSumReward(Transform):
    """Writes `reward`, the first player's reward minus the second's."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        first, second = (next_tensordict["player0", "reward"], next_tensordict["player1", "reward"])
        return next_tensordict.set("reward", first - second)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        reward_spec["reward"] = Unbounded(shape=(*reward_spec.shape, 1))
        return reward_spec


def tictactoe(num_envs: int) -> EnvBase:
    """TorchRL's TicTacToe: the first player learns, the second plays at random.

    The environment accepts illegal moves (they overwrite a stone), so that only the mask keeps
    the game honest.
    """
    from torchrl.envs import TicTacToeEnv

    def copies(_: TensorDictBase | None, reset: TensorDictBase) -> TensorDictBase:
        return reset.expand(num_envs).clone()  # a collector writes into it, row by row

    batch = BatchSizeTransform(batch_size=[num_envs], reset_func=copies)
    return TransformedEnv(TicTacToeEnv(single_player=True), batch).append_transform(ZeroSumReward())


def encode_tictactoe(board: Tensor) -> Tensor:
    """Board of -1 (empty), 0 and 1 -> two planes, own stones and the opponent's."""
    return torch.cat([board == 0, board == 1], -1).flatten(-2).float()


TICTACTOE = Task(
    make=tictactoe,
    encode=encode_tictactoe,
    package="torchrl",
    settings={
        "total_frames": 800_000,
        "num_envs": 256,
        "frames_per_batch": 8192,
        "minibatch_size": 1024,
        "lr": 2e-3,
        "hidden": 128,
        "eval_episodes": 1000,
    },
    observation=("board",),
    mask="mask",
    board_game=True,
)
