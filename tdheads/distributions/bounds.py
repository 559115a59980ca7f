"""Closed bounds of an action, and what rounding onto them means."""

from __future__ import annotations

from typing import Any

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
        least, most = fitting(low, high, shape, key)
        if not (least.isfinite().all() and most.isfinite().all() and (least <= most).all()):
            raise ValueError(
                f"{show(key)}: expected finite bounds with low <= high, got low={least.tolist()},"
                f" high={most.tolist()}; an unbounded action needs a NormalHead"
            )
        least, most = least.clone(), most.clone()
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
        inside = (value >= self.low.to(value.dtype)) & (value <= self.high.to(value.dtype))
        if not inside.all():  # nan is not
            bad = ~inside
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


def fitting(
    low: float | Tensor, high: float | Tensor, shape: torch.Size | None, key: NestedKey
) -> tuple[Tensor, Tensor]:
    """Return bounds in float64 that end in the shape of the action, ``[*agents, *shape]``.

    Raises:
        ValueError: for bounds that would make the action larger, or do not fit it.

    Example:
        >>> fitting(0.0, torch.ones(2), torch.Size([2]), "action")[0].shape
        torch.Size([2])
    """
    least, most = _exact(low, "low", key), _exact(high, "high", key)
    dims = [least.shape, most.shape, torch.Size() if shape is None else shape]
    try:
        wide = torch.broadcast_shapes(*dims)
    except RuntimeError:
        wide = None
    if wide is None or (shape is not None and wide[len(wide) - len(shape) :] != shape):
        raise _misfit(key, least, most, shape)
    return least.expand(wide), most.expand(wide)


def _misfit(key: NestedKey, low: Tensor, high: Tensor, shape: torch.Size | None) -> ValueError:
    expected = "bounds of one shape" if shape is None else f"bounds that fit shape={tuple(shape)}"
    return ValueError(
        f"{show(key)}: expected {expected}, got low of shape {list(low.shape)} and high of"
        f" shape {list(high.shape)}; give one number, or one per entry of the action"
    )


def _exact(bound: Any, name: str, key: NestedKey) -> Tensor:
    if bound is None or isinstance(bound, (str, complex)):
        raise TypeError(f"{show(key)}: expected a number or a tensor, got {name}={bound!r}")
    return torch.as_tensor(bound, device="cpu", dtype=torch.float64)
