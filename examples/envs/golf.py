"""Golf on a line: a hybrid action, written here because no package has a small one."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, StepCounter, TransformedEnv

from envs.common import Task, as_it_is


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


GOLF = Task(
    make=golf,
    encode=as_it_is,
    package=None,
    settings={"total_frames": 300_000, "num_envs": 128, "frames_per_batch": 4096},
    action=("action", "club"),
    mask="club_mask",
)
