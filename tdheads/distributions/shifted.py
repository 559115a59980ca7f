"""Integer actions that do not start at 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence, register_kl

from tdheads.distributions.draw import deterministic
from tdheads.distributions.movable import Movable


class ShiftedLeaf(Movable, Distribution):
    r"""A discrete distribution whose values are shifted by a constant.

    .. math:: p(a) = p_{base}(a - start)

    Args:
        base: a discrete distribution.
        start: what its value 0 stands for, a number or one per dim of its values.

    Example:
        >>> base = torch.distributions.Categorical(torch.ones(2, 3))
        >>> ShiftedLeaf(base, torch.tensor(5)).log_prob(torch.tensor([7, 5])).exp()
        tensor([0.3333, 0.3333])
    """

    arg_constraints: dict[str, Any] = {}
    closed = True

    def __init__(self, base: Distribution, start: Tensor) -> None:
        self.base, self.start = base, start
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ShiftedLeaf:
        """Return a view of the distribution with a larger batch shape."""
        return type(self)(self.base.expand(batch_shape), self.start)

    @property
    def validates(self) -> bool:
        """Whether the base looks at values."""
        return getattr(self.base, "validates", True)

    @property
    def empty(self) -> Tensor | None:
        """Rows without a legal choice, as in the base."""
        return getattr(self.base, "empty", None)

    @property
    def logits(self) -> Tensor:
        """Log-probabilities of the base's values."""
        return self.base.logits  # type: ignore[attr-defined]  # of every discrete distribution

    @property
    def probs(self) -> Tensor:
        """Probabilities of the base's values."""
        return self.base.probs  # type: ignore[attr-defined]  # of every discrete distribution

    @property
    def support(self) -> constraints.Constraint:
        """Integers."""
        return constraints.independent(constraints.integer_interval(-(2**63), 2**63 - 1), 0)

    @property
    def mode(self) -> Tensor:
        """The shifted mode."""
        return self.base.mode + self.start

    @property
    def deterministic_sample(self) -> Tensor:
        """The shifted deterministic value."""
        return deterministic(self.base) + self.start

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw from the base and shift."""
        return self.base.sample(torch.Size(sample_shape)) + self.start

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value``, any integer dtype."""
        return self.base.log_prob(value.long() - self.start)

    def entropy(self) -> Tensor:
        """Entropy of the base."""
        return self.base.entropy()


@register_kl(ShiftedLeaf, ShiftedLeaf)
def _kl_shifted(p: ShiftedLeaf, q: ShiftedLeaf) -> Tensor:
    return kl_divergence(p.base, q.base)
