"""What elementwise distributions inside bounds have in common."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence

from tdheads.arguments import check_class
from tdheads.checks import shape_error, show
from tdheads.distributions.bounds import Bounds
from tdheads.distributions.movable import Movable
from tdheads.keys import Names, NestedKey

T = TypeVar("T", bound="BoundedDistribution")


def positive_pair(a: Any, b: Any, labels: tuple[str, str], key: NestedKey) -> tuple[Tensor, Tensor]:
    """Return two parameters as tensors of one batch shape.

    Example:
        >>> positive_pair(torch.zeros(3), 1.0, ("loc", "scale"), "loc")[1]
        tensor(1.)
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
        return a, b
    for value, label in ((a, labels[0]), (b, labels[1])):
        if not isinstance(value, (Tensor, int, float)):
            kind = type(value).__name__
            raise TypeError(f"{show(key)}: expected a tensor, got a {kind} for {label}")
    like = next((x for x in (a, b) if isinstance(x, Tensor)), None)
    first, second = (torch.as_tensor(x, device=None if like is None else like.device)
                     for x in (a, b))  # fmt: skip
    try:
        torch.broadcast_shapes(first.shape, second.shape)
    except RuntimeError as error:
        todo = f"{labels[0]} and {labels[1]} have one shape"
        raise shape_error(key, first.shape, second, todo) from error
    return first, second


def bounds_of(
    low: float | Tensor, high: float | Tensor, bounds: Bounds | None, like: Tensor, names: Names
) -> Bounds:
    """Return bounds that fit a batch shape, which they may not widen.

    Example:
        >>> bounds_of(0.0, 1.0, None, torch.zeros(3), Names()).half_width
        tensor(0.5000, dtype=torch.float64)
    """
    check_class("bounds", bounds, Bounds, "prepared Bounds")
    if bounds is not None:
        return bounds
    made = Bounds(low, high, key=names.value).to(like.device)
    shape, own = like.shape, made.low.shape
    pairs = zip(own[::-1], shape[::-1], strict=False)
    if len(own) > len(shape) or any(n not in (1, m) for n, m in pairs):
        todo = "bounds broadcast to the batch shape"
        raise shape_error(names.value, f"that fits {list(shape)}", own, todo)
    return made


class BoundedDistribution(Movable, Distribution):
    """Base of distributions that carry ``base_dist`` onto ``bounds``."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True
    base_dist: Any
    bounds: Bounds
    validates: bool
    _names: Names

    def expand(self: T, batch_shape: Any, _instance: Any = None) -> T:
        """Return a view of the distribution with a larger batch shape."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.validates, new._names, new.bounds = self.validates, self._names, self.bounds
        new.base_dist = self.base_dist.expand(torch.Size(batch_shape))
        Distribution.__init__(new, torch.Size(batch_shape), validate_args=False)
        return new

    @property
    def support(self) -> constraints.Constraint:
        """The closed interval between the bounds."""
        return constraints.interval(self.bounds.low, self.bounds.high)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw without a gradient, ``[*sample_shape, *B]``."""
        with torch.no_grad():
            return self.rsample(sample_shape)


def kl_within_bounds(p: BoundedDistribution, q: BoundedDistribution) -> Tensor:
    """KL of two distributions of one kind: a bijection that both sides share does not change it.

    Raises:
        ValueError: for other bounds on the two sides.
    """
    if p.validates and not p.bounds.same_as(q.bounds):
        raise ValueError(
            f"KL of two {type(p).__name__}: expected the same bounds on both sides, got"
            f" {p.bounds.low.tolist()} to {p.bounds.high.tolist()} and"
            f" {q.bounds.low.tolist()} to {q.bounds.high.tolist()}"
        )
    return p.bounds.drop_fixed(kl_divergence(p.base_dist, q.base_dist))
