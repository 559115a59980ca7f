"""A head and a distribution of your own, picked up by `make_head`: a box cut into bins.

A bounded continuous action becomes one categorical over `BINS` values per dimension, which can be
multi-modal and needs no squashing (Tang and Agrawal, https://arxiv.org/abs/1901.10500).

    python examples/custom_head.py
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributions import Distribution, constraints
from torchrl.data import Bounded

from tdheads import LeafHead, MaskedMultiCategorical, make_head, register_head

BINS = 11


class Bins(Distribution):
    """`bins` equally spaced values per dimension of `[low, high]`."""

    support = constraints.real_vector
    closed = True  # event dims are closed: one log-prob per row

    def __init__(self, index: MaskedMultiCategorical, low: Tensor, high: Tensor) -> None:
        self.index, self.low, self.step = index, low, (high - low) / (BINS - 1)
        super().__init__(index.batch_shape, index.event_shape, validate_args=False)

    def _value(self, index: Tensor) -> Tensor:
        return self.low + self.step * index

    @property
    def mode(self) -> Tensor:
        return self._value(self.index.mode)

    deterministic_sample = mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        return self._value(self.index.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.index.log_prob(((value - self.low) / self.step).round().long())

    def entropy(self) -> Tensor:
        return self.index.entropy()


class BinsHead(LeafHead):
    """Reads `K_logits` `[*B, dims * BINS]`, writes `K` `[*B, dims]`."""

    def __init__(self, action_key: Any, low: Tensor, high: Tensor, **leaf: Any) -> None:
        super().__init__(action_key, {"logits": [low.numel() * BINS]}, **leaf)
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> Bins:
        nvec = [BINS] * len(self.low)
        index = MaskedMultiCategorical(logits, nvec, validate_args=self.validate)
        return Bins(index, self.low, self.high)


def bins_head(action_key: Any, spec: Bounded, *, mask: Any, validate: bool, **_: Any) -> BinsHead:
    """What `make_head` calls for a spec without batch dims."""
    return BinsHead(
        action_key, spec.space.low, spec.space.high, dtype=spec.dtype, validate=validate
    )


if __name__ == "__main__":
    register_head(Bounded)(bins_head)
    head = make_head(Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0])))
    td = TensorDict({"hidden": torch.randn(4, 64)}, [4])
    print(head(head.projection(64)(td)).select("action", "action_log_prob").to_dict())
