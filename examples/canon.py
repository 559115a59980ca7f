"""A round in three voices: an environment in which a policy without memory gets only so far."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase


class CanonEnv(EnvBase):
    """Sing a tune as a round: every voice sings what the one before it sang a beat ago.

    At each beat one note of a random tune is heard (`observation`, one-hot). The first voice has to
    sing it, the second the note of one beat ago, the third the note of two beats ago: the action is
    multi-discrete, three choices of 0 (rest) or a note, 1 to 6. The mask `[3, 7]` has a row for
    each voice: three notes are in its reach, the right one and two others drawn anew at every beat.
    In the beats before its entry a voice can only rest. The reward is the number of right notes;
    a tune has 8 to 16 beats, 12 on average, and 3 x 12 - 3 = 33 notes are to be sung.

    What can be reached, per tune:

    * 11 by chance: one of three notes in reach is right;
    * 19 without memory: 12 by the first voice. Given all that the policy sees, the note heard and
      the masks, the target of another voice is each of the three notes in its reach with the
      same probability, because notes are independent and the others in reach are drawn without
      looking at them. So no choice does better than 1/3: 12 + (11 + 10) / 3 = 19;
    * 33 by a policy that remembers two notes.

    The state is in the tensordict, so that any part of the batch can be reset by itself.
    """

    VOICES, NOTES, REACH = 3, 6, 3
    SHORTEST, LONGEST = 8, 16
    RANDOM, MEMORYLESS, BEST = 11.0, 19.0, 33.0
    """Mean returns: by chance, the most without memory, the most."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(batch_size=[num_envs])
        shape = (num_envs, self.VOICES)
        choices = self.NOTES + 1
        self.observation_spec = Composite(
            observation=Unbounded(shape=(num_envs, self.NOTES)),
            action_mask=Categorical(2, shape=(*shape, choices), dtype=torch.bool),
            state=Composite(
                targets=Categorical(choices, shape=shape),
                left=Unbounded(shape=(num_envs, 1), dtype=torch.int64),
                shape=(num_envs,),
            ),
            shape=(num_envs,),
        )
        self.action_spec = MultiCategorical([choices] * self.VOICES, shape=shape)
        self.reward_spec = Unbounded(shape=(num_envs, 1))
        self.rng = torch.Generator()

    def _set_seed(self, seed: int | None) -> None:
        self.rng.manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        waiting = torch.zeros(*self.batch_size, self.VOICES - 1, dtype=torch.int64)
        left = self._draw(self.SHORTEST, self.LONGEST)
        return self._observe(torch.cat([self._draw(1, self.NOTES), waiting], -1), left)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        targets, left = tensordict["state", "targets"], tensordict["state", "left"] - 1
        right = (tensordict["action"] == targets) & (targets > 0)
        following = torch.cat([self._draw(1, self.NOTES), targets[:, :-1]], -1)
        result = self._observe(following, left)
        reward = right.sum(-1, keepdim=True).float()
        return result.update({"reward": reward, "done": left == 0})

    def _draw(self, low: int, high: int) -> Tensor:
        """Integers from `low` to `high`, both included, `[num_envs, 1]`."""
        return torch.randint(low, high + 1, (*self.batch_size, 1), generator=self.rng)

    def _observe(self, targets: Tensor, left: Tensor) -> TensorDictBase:
        """The note heard is the first voice's target; each voice's reach is drawn."""
        heard = one_hot(targets[:, 0] - 1, self.NOTES).float()
        wanted = one_hot(targets, self.NOTES + 1)[..., 1:]
        order = torch.rand(wanted.shape, generator=self.rng) + wanted
        reach = torch.zeros_like(order, dtype=torch.bool)
        reach.scatter_(-1, order.topk(self.REACH).indices, True)
        rests = (targets == 0).unsqueeze(-1)
        return TensorDict(
            {
                "observation": heard,
                "action_mask": torch.cat([rests, reach & ~rests], -1),
                "state": TensorDict({"targets": targets, "left": left}, self.batch_size),
            },
            self.batch_size,
        )
