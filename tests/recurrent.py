"""Recurrent policies under test: an environment with episodes of unequal length, and networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import (
    Categorical,
    Composite,
    LazyTensorStorage,
    MultiCategorical,
    SliceSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import EnvBase
from torchrl.modules import GRUModule, LSTMModule

from tdheads import CategoricalHead, CompositeHead, Head, MultiCategoricalHead, make_actor

# Sizes are different primes, so that a wrong broadcast shows.
ENVS, STEPS, FEATURES, WIDTH, LONGEST = 5, 13, 3, 7, 6
CELLS: dict[str, Any] = {"lstm": LSTMModule, "gru": GRUModule}


@dataclass(frozen=True)
class Leaf:
    """A discrete leaf: the number of choices of each of its dimensions, and its spec."""

    key: str
    nvec: tuple[int, ...]

    def head(self) -> Head:
        if len(self.nvec) == 1:
            return CategoricalHead(self.key, self.nvec[0], mask=True)
        return MultiCategoricalHead(self.key, list(self.nvec), mask=True)

    def spec(self, envs: int) -> Any:
        if len(self.nvec) == 1:
            return Categorical(self.nvec[0], shape=(envs,))
        return MultiCategorical(list(self.nvec), shape=(envs, len(self.nvec)))

    def dims(self, td: TensorDictBase) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Logits at collection, mask, and choice of each dimension, cut out of the batch."""
        action = td[self.key].reshape(*td.shape, len(self.nvec))
        logits = td[f"{self.key}_logits"].split(self.nvec, -1)
        masks = td[f"{self.key}_mask"].split(self.nvec, -1)
        return list(zip(logits, masks, action.unbind(-1), strict=True))


ACTIONS = {
    "multi-discrete": (Leaf("action", (3, 2, 5)),),
    "composite": (Leaf("kind", (3,)), Leaf("pair", (2, 5))),
}


class RaggedEnv(EnvBase):
    """Observations, masks and rewards are random; an episode ends after 1 to 6 steps."""

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        super().__init__(batch_size=[ENVS])
        self.leaves = leaves
        masks = {
            f"{leaf.key}_mask": Categorical(2, shape=(ENVS, sum(leaf.nvec)), dtype=torch.bool)
            for leaf in leaves
        }
        self.observation_spec = Composite(
            observation=Unbounded(shape=(ENVS, FEATURES)), **masks, shape=(ENVS,)
        )
        self.action_spec = Composite({x.key: x.spec(ENVS) for x in leaves}, shape=(ENVS,))
        self.reward_spec = Unbounded(shape=(ENVS, 1))
        self.rng = torch.Generator()

    def _set_seed(self, seed: int | None) -> None:
        self.rng.manual_seed(seed or 0)

    def _observe(self) -> TensorDictBase:
        td = TensorDict({"observation": torch.randn(ENVS, FEATURES, generator=self.rng)}, [ENVS])
        for leaf in self.leaves:
            masks = []
            for n in leaf.nvec:
                mask = torch.rand(ENVS, n, generator=self.rng) < 0.6
                mask[:, 1] |= ~mask.any(-1)
                masks.append(mask)
            td[f"{leaf.key}_mask"] = torch.cat(masks, -1)
        return td

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        reward = torch.randn(ENVS, 1, generator=self.rng)
        done = torch.rand(ENVS, 1, generator=self.rng) < 1 / 4
        return self._observe().update({"reward": reward, "done": done})


def networks(cell: str, action: str) -> tuple[Any, Any]:
    """Actor and critic that share their cell."""
    body = CELLS[cell](FEATURES, WIDTH, in_key="observation", out_key="hidden")
    heads = [leaf.head() for leaf in ACTIONS[action]]
    head = heads[0] if len(heads) == 1 else CompositeHead(*heads)
    actor = make_actor(body, head, num_features=WIDTH, gain=1.0)
    value = TensorDictModule(nn.Linear(WIDTH, 1), ["hidden"], ["state_value"])
    return actor, TensorDictSequential(body, value)


def collector(actor: Any, action: str, batches: int = 1) -> Collector:
    env = RaggedEnv(ACTIONS[action])
    env.set_seed(0)
    return Collector(
        env,
        actor,
        frames_per_batch=ENVS * STEPS,
        total_frames=batches * ENVS * STEPS,
        auto_register_policy_transforms=True,
    )


def collect(actor: Any, action: str) -> TensorDictBase:
    """A batch ``[ENVS, STEPS]`` in which episodes end, and random advantages and targets."""
    (batch,) = collector(actor, action)
    batch["advantage"], batch["value_target"] = torch.randn(2, *batch.shape, 1)
    return batch


def buffer_of(batch: TensorDictBase, slices: int) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(batch.numel()),
        sampler=SliceSampler(
            slice_len=LONGEST,
            traj_key=("collector", "traj_ids"),
            strict_length=False,
            pad_output=True,
        ),
        batch_size=slices * LONGEST,
    )
    buffer.extend(batch.reshape(-1))
    return buffer


def pieces(batch: TensorDictBase, slices: int) -> TensorDictBase:
    """Padded pieces of episodes, ``[slices, LONGEST]``."""
    return buffer_of(batch, slices).sample().reshape(slices, LONGEST)


# ---- written out with torch alone


def by_hand(cell: str, actor: Any, observation: Tensor, state: list[Tensor]) -> Tensor:
    """Features of one episode ``[T, WIDTH]``, one step of the cell after another."""
    weights = dict(next(m for m in actor.modules() if isinstance(m, nn.RNNBase)).named_parameters())
    w_i, w_h, b_i, b_h = (
        weights[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h, *rest = state
    out = []
    for x in observation:
        from_x, from_h = w_i @ x + b_i, w_h @ h + b_h
        if cell == "lstm":
            i, f, g, o = (from_x + from_h).chunk(4)
            c = f.sigmoid() * rest[0] + i.sigmoid() * g.tanh()
            rest, h = [c], o.sigmoid() * c.tanh()
        else:
            (r_x, z_x, n_x), (r_h, z_h, n_h) = from_x.chunk(3), from_h.chunk(3)
            z = (z_x + z_h).sigmoid()
            new = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
            h = (1 - z) * new + z * h
        out.append(h)
    return torch.stack(out)
