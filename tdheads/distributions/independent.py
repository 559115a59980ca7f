"""Closes the event dims of an elementwise distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, kl_divergence, register_kl

from tdheads.distributions.draw import deterministic, looks_first, score_draw
from tdheads.distributions.inputs import check_value_shape
from tdheads.distributions.movable import Movable
from tdheads.keys import Names
from tdheads.reduce import sum_event


class IndependentLeaf(Movable, Independent):  # type: ignore[type-arg]  # torch at run time has none
    r"""An elementwise distribution as one action leaf: the log-prob is summed over the event dims.

    .. math:: \log p(a) = \sum_i \log p_i(a_i)

    torch's :class:`~torch.distributions.Independent`, with what tdheads asks of every leaf:
    ``deterministic_sample``, batches of zero rows, no use of torch's global validation flag.

    Args:
        base_distribution: batch shape ``[*B, *event]``.
        reinterpreted_batch_ndims: number of event dims.
        validates: whether the head that built it looks at values.
        names: the keys that errors speak of.

    Example:
        >>> dist = IndependentLeaf(torch.distributions.Normal(torch.zeros(4, 3), 1.0), 1)
        >>> dist.log_prob(torch.zeros(4, 3)).shape
        torch.Size([4])
    """

    empty = None
    closed = True

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        *,
        validates: bool = True,
        names: Names = Names(),
    ) -> None:
        self.validates = validates
        self.names = names
        base, ndim = base_distribution.batch_shape, reinterpreted_batch_ndims
        if ndim > len(base):  # an error of torch's
            super().__init__(base_distribution, ndim, validate_args=False)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, ndim
        rows = len(base) - ndim
        event = base[rows:] + base_distribution.event_shape
        Distribution.__init__(self, base[:rows], event, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> IndependentLeaf:
        """Return a view of the distribution with a larger batch shape."""
        closed = self.event_shape[: self.reinterpreted_batch_ndims]
        base = self.base_dist.expand(torch.Size(batch_shape) + closed)
        ndim = self.reinterpreted_batch_ndims
        return type(self)(base, ndim, validates=self.validates, names=self.names)

    @looks_first
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-prob summed over the event dims, ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self.names)
        return sum_event(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def _score(self, value: Tensor) -> Tensor:
        """Log-prob of an action that was drawn here: nothing is checked again."""
        return sum_event(score_draw(self.base_dist, value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        """Entropy in nats summed over the event dims, ``[*B]``."""
        return sum_event(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    @property
    def deterministic_sample(self) -> Tensor:
        """The base distribution's deterministic action, ``[*B, *event]``."""
        return deterministic(self.base_dist)


@register_kl(IndependentLeaf, IndependentLeaf)
def _kl_independent_leaf(p: IndependentLeaf, q: IndependentLeaf) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"KL: expected the same action shape, got {p.event_shape}, {q.event_shape}"
        )
    return sum_event(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
