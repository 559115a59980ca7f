"""What elementwise distributions inside bounds have in common."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence

from tdheads.distributions.bounds import Bounds
from tdheads.distributions.movable import Movable
from tdheads.keys import Names

T = TypeVar("T", bound="BoundedDistribution")


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
