"""The environments that `train.py` knows, each one a short function, with its settings beside it.

To add one, write a function `(num_envs) -> EnvBase` whose batch size is `[num_envs]`, and a `Task`
line in `TASKS`. Packages are imported inside the functions, so that one environment's package is
not needed for another's.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import (
    BatchSizeTransform,
    EnvBase,
    LineariseRewards,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.transforms import Transform

Key = str | tuple[str, ...]


class MissingPackageError(Exception):
    """An optional package is not installed; the message says what to install."""


def require(module: str, extra: str) -> Any:
    """Import `module`, or say which extra of tdheads brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f'{module} cannot be imported ({error}); run: pip install "tdheads[{extra}]"'
        raise MissingPackageError(message) from None


@dataclass(frozen=True)
class Task:
    """An environment, where its parts lie in the tensordict, and settings that work for it."""

    make: Callable[[int], EnvBase]
    encode: Callable[..., Tensor]
    """The entries `observation` -> float features `[*B, f]`, the input of the networks."""
    settings: dict[str, Any]
    """Defaults of the options of `train.py` for this environment."""
    observation: tuple[Key, ...] = ("observation",)
    action: Key = "action"
    """The discrete action leaf that `mask` speaks about."""
    mask: Key = "action_mask"
    head: dict[str, Any] = field(default_factory=dict)
    """More keywords for `make_head`."""
    group: str | None = None
    """Where reward, done and value lie: in this agent group, or at the root."""
    board_game: bool = False
    """The return of an episode is 1 for a win, 0 for a draw, -1 for a loss."""

    @property
    def joint(self) -> bool:
        """Whether the mask covers the product of the action's dimensions."""
        return bool(self.head.get("joint", False))

    def key(self, name: str) -> Key:
        """`name` inside the task's group."""
        return (self.group, name) if self.group else name


# --- Taxi ------------------------------------------------------------------------------------


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


# --- TicTacToe -------------------------------------------------------------------------------


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


# --- Golf: a hybrid action -------------------------------------------------------------------


class GolfEnv(EnvBase):
    """Golf on a line: choose a club, and how hard to swing it.

    The hole is at 0, and the ball starts 0.7 to 1 away from it, on either side. The action is
    hybrid: `("action", "club")` is the driver, the iron or the putter, and `("action", "swing")`
    in [-1, 1] is the part of the club's reach that the ball flies, with an error of 10% of the
    flight. Where the ball lies decides which clubs can be used (`club_mask`): all on the fairway,
    no driver in the rough, the iron only in the sand, and the putter only on the green (nearer
    than 0.1). The ball is in when it stops within 0.01 of the hole. A stroke costs 1; one with a
    club that cannot be used does not move the ball. A good player needs about four strokes.

    The state is in the tensordict, so that any part of the batch can be reset by itself.
    """

    REACH = torch.tensor([1.0, 0.3, 0.1])
    CLUBS = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 1]], dtype=torch.bool)
    """Usable clubs on the fairway, in the rough, in the sand, on the green."""
    LIE_ODDS = torch.tensor([0.6, 0.25, 0.15])
    GREEN, HOLE, ERROR = 0.1, 0.01, 0.1

    def __init__(self, num_envs: int) -> None:
        super().__init__(batch_size=[num_envs])
        self.observation_spec = Composite(
            position=Unbounded(shape=(num_envs, 1)),
            observation=Unbounded(shape=(num_envs, 6)),
            club_mask=Categorical(2, shape=(num_envs, 3), dtype=torch.bool),
            shape=(num_envs,),
        )
        self.action_spec = Composite(
            action=Composite(
                club=Categorical(3, shape=(num_envs,)),
                swing=Bounded(-1.0, 1.0, shape=(num_envs, 1)),
                shape=(num_envs,),
            ),
            shape=(num_envs,),
        )
        self.reward_spec = Unbounded(shape=(num_envs, 1))
        self.rng = torch.Generator()

    def _set_seed(self, seed: int | None) -> None:
        self.rng.manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        start = torch.empty(*self.batch_size, 1).uniform_(-0.3, 0.3, generator=self.rng)
        return self._observe(start + 0.7 * start.sign())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        club = tensordict["action", "club"].unsqueeze(-1)
        usable = tensordict["club_mask"].gather(-1, club)
        flight = self.REACH[club] * tensordict["action", "swing"] * usable
        error = torch.empty_like(flight).normal_(generator=self.rng)
        position = tensordict["position"] + flight * (1 + self.ERROR * error)
        done = position.abs() < self.HOLE
        result = self._observe(position)
        return result.update({"reward": -torch.ones_like(position), "done": done})

    def _observe(self, position: Tensor) -> TensorDictBase:
        """The lie is drawn where the ball stops; the position is shown at three scales."""
        odds = self.LIE_ODDS.expand(*self.batch_size, 3)
        lie = odds.multinomial(1, generator=self.rng)
        lie = torch.where(position.abs() < self.GREEN, 3, lie).squeeze(-1)
        scaled = torch.cat([position, position / 0.3, position / self.GREEN], -1).clamp(-2, 2)
        club_mask = self.CLUBS[lie]
        observation = torch.cat([scaled, club_mask.float()], -1)
        entries = {"position": position, "observation": observation, "club_mask": club_mask}
        return TensorDict(entries, self.batch_size)


def golf(num_envs: int) -> EnvBase:
    """`GolfEnv`, at most 20 strokes."""
    return TransformedEnv(GolfEnv(num_envs), StepCounter(max_steps=20))


# --- Connect Four (PettingZoo) ---------------------------------------------------------------


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


# --- Connector and BinPack (Jumanji) ---------------------------------------------------------


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


TASKS = {
    "taxi": Task(
        make=taxi,
        encode=encode_taxi,
        settings={
            "total_frames": 500_000,
            "num_envs": 128,
            "frames_per_batch": 8192,
            "minibatch_size": 1024,
            "lr": 3e-3,
            "gamma": 0.95,
        },
    ),
    "tictactoe": Task(
        make=tictactoe,
        encode=encode_tictactoe,
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
    ),
    "golf": Task(
        make=golf,
        encode=lambda observation: observation,
        settings={"total_frames": 300_000, "num_envs": 128, "frames_per_batch": 4096},
        action=("action", "club"),
        mask="club_mask",
    ),
    "connect_four": Task(
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
        observation=(("learner", "observation", "observation"),),
        action=("learner", "action"),
        mask=("learner", "action_mask"),
        head={"on_empty": "neutral"},
        group="learner",
        board_game=True,
    ),
    "connector": Task(
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
    ),
    "binpack": Task(
        make=binpack,
        encode=encode_binpack,
        settings={"total_frames": 200_000, "num_envs": 64, "frames_per_batch": 4096},
        observation=BINPACK_OBSERVATION,
        head={"joint": True},
    ),
}
