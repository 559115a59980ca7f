"""PettingZoo: Connect Four, where one player waits while the other moves."""

from __future__ import annotations

import warnings

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase, SerialEnv, TransformedEnv
from torchrl.envs.transforms import Transform

from envs.common import Task, require


class RandomOpponent(Transform):
    """Plays one group of a turn-based game at random, and hides its action from the policy.

    PettingZoo says whose turn it is in `(group, "mask")`, and shows the waiting player a mask in
    which every move is legal. This transform makes it all False, which is what it means: nothing
    to choose.
    """

    def __init__(self, learner: str, opponent: str) -> None:
        super().__init__()
        self.learner, self.opponent = learner, opponent

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        group = next_tensordict[self.learner]
        group["action_mask"] = group["action_mask"] & group["mask"].unsqueeze(-1)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        legal = tensordict[self.opponent, "action_mask"]
        move = legal.float().flatten(0, -2).multinomial(1).view(legal.shape[:-1])
        return tensordict.set((self.opponent, "action"), move)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        del input_spec["full_action_spec", self.opponent]
        return input_spec


def connect_four(num_envs: int) -> EnvBase:
    """PettingZoo's Connect Four: the first player learns, the second plays at random.

    Both players take part in every step, and one of them waits. The learner's value is defined
    at both kinds of step, so that GAE runs over all of them with its own reward; in the policy
    loss the steps at which it waits do not count, because the head is built with
    `on_empty="neutral"`.
    """
    pettingzoo = require("pettingzoo", "pettingzoo")
    from torchrl.envs import PettingZooWrapper

    # TorchRL says so of every version but one.
    warnings.filterwarnings("ignore", "PettingZoo in TorchRL is tested using version")

    def one() -> EnvBase:
        game = pettingzoo.make("aec", "classic/connect_four-v3")
        groups = {"learner": ["player_0"], "opponent": ["player_1"]}
        env = PettingZooWrapper(game, use_mask=True, group_map=groups)
        return TransformedEnv(env, RandomOpponent("learner", "opponent"))

    return SerialEnv(num_envs, one)


def encode_connect_four(board: Tensor) -> Tensor:
    """`[*B, 6, 7, 2]` -> flat planes."""
    return board.flatten(-3).float()


CONNECT_FOUR = Task(
    make=connect_four,
    encode=encode_connect_four,
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
