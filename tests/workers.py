"""An environment and a policy that hold every head at once, for collectors' worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from tests.cases import HEADS


class EveryInput(EnvBase):
    """Random observations, masks and lists of every head, under ``("case <number>", ...)``."""

    def __init__(self) -> None:
        super().__init__(batch_size=[])
        first = self._inputs(0)
        self.observation_spec = Composite(
            {
                case: Composite(
                    {k: Unbounded(v.shape, dtype=v.dtype) for k, v in td.items(True, True)}
                )
                for case, td in first.items()
            }
        )
        self.action_spec = Composite({"case 0": Composite(action=Categorical(7))})
        self.reward_spec = Unbounded((1,))

    def _inputs(self, seed: int) -> TensorDict:
        return TensorDict({f"case {i}": case.inputs([], seed) for i, case in enumerate(HEADS)}, [])

    def _reset(self, tensordict: TensorDictBase | None, **_: Any) -> TensorDictBase:
        return self._inputs(int(torch.randint(1_000_000, ())))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        td = self._inputs(int(torch.randint(1_000_000, ())))
        return td.update({"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(0 if seed is None else seed)


class EveryActor(TensorDictModuleBase):
    """The actors of all heads side by side, each on its own part of the tensordict."""

    def __init__(self, actors: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.actors = nn.ModuleDict(actors)
        self.in_keys = [self._under(n, k) for n, a in actors.items() for k in a.in_keys]
        self.out_keys = [self._under(n, k) for n, a in actors.items() for k in a.out_keys]

    @staticmethod
    def _under(name: str, key: Any) -> tuple[str, ...]:
        return (name, key) if isinstance(key, str) else (name, *key)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Let every actor act."""
        for name, actor in self.actors.items():
            tensordict.set(name, actor(tensordict.get(name)))
        return tensordict
