"""Closed bounds of an action, and what rounding onto them means."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tdheads.checks import rows_where, show
from tdheads.keys import NestedKey


class Bounds(NamedTuple):
    """``low <= action <= high``; an entry whose bounds are equal is fixed.

    Example:
        >>> Bounds.of(0.0, 10.0, torch.zeros(1)).middle
        tensor(5.)
    """

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, low: float | Tensor, high: float | Tensor, like: Tensor) -> Bounds:
        """Take the bounds over to the dtype and device of ``like``."""
        return cls(
            torch.as_tensor(low, dtype=like.dtype, device=like.device),
            torch.as_tensor(high, dtype=like.dtype, device=like.device),
        )

    @property
    def middle(self) -> Tensor:
        """Centre of the bounds."""
        return (self.low + self.high) / 2

    @property
    def fixed(self) -> Tensor:
        """Entries that have one value only."""
        return self.low == self.high

    @property
    def half(self) -> Tensor:
        """Half the width; 1 where an entry is fixed, so that nothing is divided by 0."""
        return ((self.high - self.low) / 2).masked_fill(self.fixed, 1)

    def scale(self, unit: Tensor) -> Tensor:
        """Map ``[-1, 1]`` onto the bounds; rounding never carries the result past one."""
        return torch.clamp(self.middle + (self.high - self.low) / 2 * unit, self.low, self.high)

    def unscale(self, value: Tensor) -> Tensor:
        """Map a written action into the open interval (-1, 1).

        An action that was rounded onto a bound is taken for one rounding step of its dtype inside.
        """
        dtype = self.low.dtype
        reach = torch.maximum(self.low.abs(), self.high.abs()) / self.half
        edge = 1 - (torch.finfo(value.dtype).eps * reach.clamp_min(1)).clamp_max(0.5)
        return ((value.to(dtype) - self.middle) / self.half).clamp(-edge, edge)

    def check(self, value: Tensor, key: NestedKey) -> None:
        """Refuse a value outside the bounds."""
        # a bound is rounded as the written action was: bfloat16 has no 0.3
        bad = (value < self.low.to(value.dtype)) | (value > self.high.to(value.dtype))
        if bad.any():
            event = max(self.low.ndim, self.high.ndim)
            rows = bad.flatten(-event).any(-1) if 0 < event < bad.ndim else bad
            raise ValueError(
                f"{show(key)}: {value[bad][0].item():g} in {rows_where(rows)} is outside of"
                f" [{self.low.min().item():g}, {self.high.max().item():g}]; write the action that"
                " the environment took, or widen the bounds"
            )

    def same_as(self, other: Bounds) -> bool:
        """Whether both bounds are equal (looks at values)."""
        return torch.equal(self.low, other.low) and torch.equal(self.high, other.high)


def bound_buffers(
    key: NestedKey, low: float | Tensor, high: float | Tensor, shape: torch.Size
) -> dict[str, Tensor]:
    """Return the bounds of a head as tensors of the action's shape.

    Raises:
        ValueError: for bounds that are not finite or out of order.

    Example:
        >>> bound_buffers("action", 0.0, 1.0, torch.Size([2]))["high"]
        tensor([1., 1.])
    """
    low, high = (torch.as_tensor(b, dtype=torch.get_default_dtype()) for b in (low, high))
    if not (low.isfinite().all() and high.isfinite().all() and (low <= high).all()):
        raise ValueError(
            f"{show(key)}: expected finite bounds with low <= high, got low={low.tolist()},"
            f" high={high.tolist()}; an unbounded action needs a NormalHead"
        )
    return {"low": low.expand(shape).clone(), "high": high.expand(shape).clone()}
