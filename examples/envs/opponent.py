"""An opponent that plays at random, for games of two groups."""

from __future__ import annotations

from tensordict import TensorDictBase
from torchrl.data import Composite
from torchrl.envs.transforms import Transform


class RandomOpponent(Transform):
    """Plays one group of a turn-based game at random, and hides its action from the policy."""

    def __init__(self, opponent: str) -> None:
        super().__init__()
        self.opponent = opponent

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        legal = tensordict[self.opponent, "action_mask"]
        move = legal.float().flatten(0, -2).multinomial(1).view(legal.shape[:-1])
        return tensordict.set((self.opponent, "action"), move)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        del input_spec["full_action_spec", self.opponent]
        return input_spec
