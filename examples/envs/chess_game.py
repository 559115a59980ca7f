"""TorchRL's chess: 29,275 moves, of which some thirty are legal."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import Bounded, Composite
from torchrl.envs import EnvBase, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import Transform

from envs.common import Task, require

WORTH = torch.tensor([0.0, 1, 3, 3, 5, 9, 0])
"""Of nothing, pawn, knight, bishop, rook, queen and king, in the order of the chess package."""


class WhitesGame(Transform):
    """Black answers at random; the reward is what White has won in material, less its losses.

    Writes `board` `[*B, 64]`, the pieces of White as 1 to 6 and those of Black as -1 to -6.
    """

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset.set("board", self._board())

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        if not next_tensordict["done"]:
            (legal,) = next_tensordict["action_mask"].nonzero(as_tuple=True)
            reply = next_tensordict.set("action", legal[torch.randint(len(legal), ())])
            next_tensordict = self.parent.step(reply)["next"]
        board = self._board()
        won = material(board) - material(tensordict["board"])
        return next_tensordict.update({"board": board, "reward": won.unsqueeze(-1)})

    def _board(self) -> Tensor:
        squares = torch.zeros(64, dtype=torch.int8)
        for square, piece in self.parent.base_env.board.piece_map().items():
            squares[square] = piece.piece_type if piece.color else -piece.piece_type
        return squares

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["board"] = Bounded(-6, 6, shape=(64,), dtype=torch.int8)
        return observation_spec


def material(board: Tensor) -> Tensor:
    """White's material less Black's, `[*B, 64]` -> `[*B]`."""
    return (board.sign() * WORTH[board.abs().long()]).sum(-1)


def chess(num_envs: int) -> EnvBase:
    """TorchRL's ChessEnv: 20 moves of White against a player who moves at random.

    The environment refuses illegal moves with an exception.
    """
    require("chess", "chess")
    from torchrl.envs import ChessEnv

    def one() -> EnvBase:
        game = TransformedEnv(ChessEnv(), WhitesGame())
        return game.append_transform(StepCounter(max_steps=20))

    return SerialEnv(num_envs, one)


def encode_chess(board: Tensor) -> Tensor:
    """One-hot of the thirteen kinds of square."""
    return one_hot(board.long() + 6, 13).flatten(-2).float()


CHESS = Task(
    make=chess,
    encode=encode_chess,
    package="chess",
    settings={
        "total_frames": 8_000,
        "num_envs": 8,
        "frames_per_batch": 800,
        "minibatch_size": 200,
        "gamma": 0.9,
        "eval_episodes": 64,
    },
    observation=("board",),
    head={"on_empty": "neutral"},
)
