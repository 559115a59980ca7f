"""Several categorical choices at once, each with a mask of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from tdheads.distributions.layout import Layout
from tdheads.distributions.masked_categorical import MaskedCategorical, spread
from tdheads.distributions.movable import Movable
from tdheads.keys import Names


class MaskedMultiCategorical(Movable, Distribution):
    r"""``k`` independent categorical choices of ``nvec`` options each, with a factored mask.

    .. math:: \log p(a) = \sum_{d=1}^k \log p_d(a_d)

    Args:
        logits: packed, shape ``[*B, sum(nvec)]``.
        nvec: number of options of each dimension, or a prepared :class:`Layout`.
        mask: ``[*B, sum(nvec)]`` or ``[*B, k, max(nvec)]``, bool or 0/1 numbers.
        on_empty, names, validate_args: as in :class:`MaskedCategorical`; a dimension without a
            legal option counts as an empty row.

    Values have shape ``[*B, k]`` and dtype int64.

    Raises:
        ValueError: as :class:`MaskedCategorical`, and for logits that are not ``sum(nvec)`` wide.

    Source: Gymnasium's ``MultiDiscrete`` space, and the factored masks of Huang and Ontañón,
    https://arxiv.org/abs/2006.14171.

    Example:
        >>> mask = torch.tensor([[True, False, True, True, False]])
        >>> dist = MaskedMultiCategorical(torch.zeros(1, 5), [2, 3], mask)
        >>> dist.log_prob(torch.tensor([[0, 1]])).exp()
        tensor([0.5000])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    closed = True
    has_enumerate_support = True

    def __init__(
        self,
        logits: Tensor,
        nvec: Sequence[int] | Layout,
        mask: Tensor | None = None,
        *,
        on_empty: str = "error",
        names: Names = Names(),
        validate_args: bool | None = None,
    ) -> None:
        layout = nvec if isinstance(nvec, Layout) else Layout(nvec).to(logits.device)
        padded, mask = layout.pad_logits(logits, mask, names)
        self._dims = MaskedCategorical(
            padded, mask, on_empty=on_empty, names=names, validate_args=validate_args
        )
        batch_shape, event_shape = logits.shape[:-1], self._dims.batch_shape[-1:]
        self._nvec = layout.nvec
        super().__init__(batch_shape, event_shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedMultiCategorical:
        """Return a view of the distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new._dims = self._dims.expand(batch_shape + self.event_shape)
        new._nvec = self._nvec
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        return new

    @property
    def empty(self) -> Tensor | None:
        """Rows without a legal option in any dimension, ``[*B]``; ``None`` if that is an error."""
        return None if self._dims.empty is None else self._dims.empty.all(-1)

    @property
    def validates(self) -> bool:
        """Whether values are looked at (a host synchronisation)."""
        return self._dims.validates

    @property
    def logits(self) -> Tensor:
        """Log-probabilities per dimension, padded with ``-inf``, ``[*B, k, max(nvec)]``."""
        return self._dims.logits

    @property
    def probs(self) -> Tensor:
        """Probabilities per dimension, padded with 0, ``[*B, k, max(nvec)]``."""
        return self._dims.probs

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of k non-negative integers."""
        return constraints.independent(constraints.nonnegative_integer, 1)

    @property
    def mode(self) -> Tensor:
        """Most probable legal option of each dimension, ``[*B, k]``."""
        return self._dims.mode

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode."""
        return self.mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw one option per dimension, ``[*sample_shape, *B, k]`` int64."""
        return self._dims.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, k]``), shape ``[*S, *B]``."""
        return self._dims.log_prob(value).sum(-1)

    def entropy(self) -> Tensor:
        """Sum of the dimensions' entropies in nats, ``[*B]``."""
        return self._dims.entropy().sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All combinations of options, legal or not, ``[prod(nvec), *B, k]``."""
        options = [torch.arange(n, device=self.logits.device) for n in self._nvec]
        return spread(torch.cartesian_prod(*options).view(-1, len(options)), self, expand)


@register_kl(MaskedMultiCategorical, MaskedMultiCategorical)
def _kl_multi(p: MaskedMultiCategorical, q: MaskedMultiCategorical) -> Tensor:
    return torch.distributions.kl_divergence(p._dims, q._dims).sum(-1)
