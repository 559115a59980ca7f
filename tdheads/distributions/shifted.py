"""Integer actions that do not start at 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from tdheads.distributions.choices import ChoiceDistribution, kl_of_choices
from tdheads.distributions.inputs import check_whole
from tdheads.distributions.supports import Shifted


class ShiftedLeaf(ChoiceDistribution):
    r"""A discrete distribution whose values are shifted by a constant.

    .. math:: p(a) = p_{base}(a - start)

    Args:
        base: a distribution of integers, such as :class:`~tdheads.MaskedCategorical`.
        start: what its value 0 stands for, a number or one per dim of its values; with dims of
            agents in front, if they start at different numbers.

    Example:
        >>> from tdheads import MaskedCategorical
        >>> base = MaskedCategorical(torch.zeros(2, 3))
        >>> ShiftedLeaf(base, torch.tensor(5)).log_prob(torch.tensor([7, 5])).exp()
        tensor([0.3333, 0.3333])
    """

    has_enumerate_support = True

    def __init__(self, base: Any, start: Tensor) -> None:
        self.start = start
        self._set(base, base.batch_shape, base.event_shape)

    @property
    def support(self) -> constraints.Constraint:
        """That of the base, shifted."""
        return Shifted(self.base.support, self.start)

    @property
    def mode(self) -> Tensor:
        """The shifted mode."""
        return self.base.mode + self.start

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw from the base and shift."""
        return self.base.sample(torch.Size(sample_shape)) + self.start

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value``, any integer dtype."""
        if self.validates and isinstance(value, Tensor):
            check_whole(value, self.names)
        return self.base.log_prob(value.long() - self.start)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of the base, shifted."""
        if not expand and self.start.ndim > len(self.event_shape):
            raise NotImplementedError("agents that start at different numbers: use expand=True")
        return self.base.enumerate_support(expand) + self.start


@register_kl(ShiftedLeaf, ShiftedLeaf)
def _kl_shifted(p: ShiftedLeaf, q: ShiftedLeaf) -> Tensor:
    same = p.start is q.start or not p.validates or torch.equal(p.start, q.start)
    if not same:
        raise ValueError(
            f"KL: expected choices that start at the same values, got {p.start.tolist()} and"
            f" {q.start.tolist()}"
        )
    return kl_of_choices(p, q)
