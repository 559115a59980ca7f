"""Closed bounds of an action, and what rounding onto them means."""

from __future__ import annotations

import torch
from torch import Tensor

from tdheads.checks import rows_where, show
from tdheads.constants import Constants
from tdheads.keys import NestedKey


class Bounds(Constants):
    """``low <= action <= high`` in float64; an entry whose bounds are equal is fixed.

    Args:
        low, high: finite numbers or tensors.
        shape: shape of the action; bounds may have dims in front of it, for agents whose bounds
            differ. ``None`` keeps the shape of the bounds.
        key: the leaf that errors speak of.

    Raises:
        ValueError: for bounds that are not finite or out of order.

    Example:
        >>> Bounds(0.0, 10.0).scale(torch.zeros(1))
        tensor([5.])
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    half_width: Tensor
    divisor: Tensor
    reach: Tensor
    fixed: Tensor

    def __init__(
        self,
        low: float | Tensor,
        high: float | Tensor,
        shape: torch.Size | None = None,
        key: NestedKey = "action",
    ) -> None:
        least, most = torch.broadcast_tensors(_exact(low), _exact(high))
        if not (least.isfinite().all() and most.isfinite().all() and (least <= most).all()):
            raise ValueError(
                f"{show(key)}: expected finite bounds with low <= high, got low={least.tolist()},"
                f" high={most.tolist()}; an unbounded action needs a NormalHead"
            )
        shape = least.shape if shape is None else torch.broadcast_shapes(least.shape, shape)
        least, most = least.expand(shape).clone(), most.expand(shape).clone()
        fixed = least == most
        half = (most - least) / 2
        divisor = half.masked_fill(fixed, 1)
        super().__init__(
            low=least,
            high=most,
            middle=(least + most) / 2,
            half_width=half,
            divisor=divisor,
            reach=(torch.maximum(least.abs(), most.abs()) / divisor).clamp_min(1),
            fixed=fixed,
        )
        self.some_fixed = bool(fixed.any())

    def drop_fixed(self, x: Tensor) -> Tensor:
        """Set the entries that have one value only to 0: they count nothing."""
        return x.masked_fill(self.fixed, 0) if self.some_fixed else x

    def log_width(self, like: Tensor) -> Tensor:
        """Log of half the width, 0 where an entry is fixed."""
        return self.divisor.to(like.dtype).log()

    def clamp(self, value: Tensor) -> Tensor:
        """Take a value onto the bounds, as its dtype can write them."""
        return value.clamp(self.low.to(value.dtype), self.high.to(value.dtype))

    def scale(self, unit: Tensor) -> Tensor:
        """Map ``[-1, 1]`` onto the bounds; rounding never carries the result past one."""
        return self.clamp(self.middle.to(unit.dtype) + self.half_width.to(unit.dtype) * unit)

    def unscale(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Map a written action into the open interval (-1, 1), in ``dtype``.

        An action that was rounded onto a bound is taken for one rounding step inside.
        """
        # the coarser of the two roundings: that of the writing, and that of what follows
        eps = max(torch.finfo(value.dtype).eps, torch.finfo(dtype).eps)
        edge = (1 - (eps * self.reach).clamp_max(0.5)).to(dtype)
        unit = (value.to(dtype) - self.middle.to(dtype)) / self.divisor.to(dtype)
        return unit.clamp(-edge, edge)

    def check(self, value: Tensor, key: NestedKey) -> None:
        """Refuse a value outside the bounds."""
        # a bound is rounded as the written action was: bfloat16 has no 0.3
        bad = (value < self.low.to(value.dtype)) | (value > self.high.to(value.dtype))
        if bad.any():
            event = self.low.ndim
            rows = bad.flatten(-event).any(-1) if 0 < event < bad.ndim else bad
            raise ValueError(
                f"{show(key)}: {value[bad][0].item():g} in {rows_where(rows)} is outside of"
                f" [{self.low.min().item():g}, {self.high.max().item():g}]; write the action that"
                " the environment took, or widen the bounds"
            )

    def same_as(self, other: Bounds) -> bool:
        """Whether both bounds are equal (looks at values)."""
        return torch.equal(self.low, other.low) and torch.equal(self.high, other.high)


def _exact(bound: float | Tensor) -> Tensor:
    return torch.as_tensor(bound, device="cpu", dtype=torch.float64)
