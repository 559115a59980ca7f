"""Several one-hot choices in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from tdheads.distributions.layout import Layout
from tdheads.distributions.masked_categorical import check_value_shape, spread
from tdheads.distributions.masked_one_hot import MaskedOneHotCategorical
from tdheads.distributions.movable import Movable
from tdheads.keys import Names


class MaskedMultiOneHot(Movable, Distribution):
    r"""``k`` independent one-hot choices of ``nvec`` options each, concatenated.

    .. math:: \log p(a) = \sum_{d=1}^k \log p_d(a_d)

    Args:
        logits: packed, shape ``[*B, sum(nvec)]``.
        nvec: number of options of each dimension, or a prepared ``Layout``.
        mask: flat ``[*B, sum(nvec)]`` or padded ``[*B, k, max(nvec)]``, bool or 0/1 numbers.
        options: of :class:`MaskedOneHotCategorical`.

    Values have shape ``[*B, sum(nvec)]``, with one 1 per dimension.

    Raises:
        ValueError: as :class:`MaskedOneHotCategorical`.

    Source: TorchRL's ``MultiOneHot`` spec.

    Example:
        >>> dist = MaskedMultiOneHot(torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0]]), [2, 3])
        >>> dist.mode
        tensor([[0, 1, 1, 0, 0]])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    closed = True
    has_enumerate_support = True
    has_rsample = True

    def __init__(
        self,
        logits: Tensor,
        nvec: Sequence[int] | Layout,
        mask: Tensor | None = None,
        *,
        names: Names = Names(),
        **options: Any,
    ) -> None:
        layout = nvec if isinstance(nvec, Layout) else Layout(nvec).to(logits.device)
        padded, mask = layout.pad_logits(logits, mask, names)
        self._set(layout, MaskedOneHotCategorical(padded, mask, names=names, **options), names)

    def _set(self, layout: Layout, dims: MaskedOneHotCategorical, names: Names) -> None:
        self._layout, self._dims, self._names = layout, dims, names
        super().__init__(dims.batch_shape[:-1], torch.Size([layout.size]), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedMultiOneHot:
        """Return a view of the distribution with a larger batch shape."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        dims = self._dims.expand(torch.Size(batch_shape) + self._dims.batch_shape[-1:])
        new._set(self._layout, dims, self._names)
        return new

    @property
    def validates(self) -> bool:
        """Whether values are looked at (a host synchronisation)."""
        return self._dims.validates

    @property
    def empty(self) -> Tensor | None:
        """Rows without a legal option in any dimension, ``[*B]``; ``None`` if that is an error."""
        return None if self._dims.empty is None else self._dims.empty.all(-1)

    @property
    def logits(self) -> Tensor:
        """Log-probabilities of the options, ``[*B, sum(nvec)]``."""
        return self._layout.pack(self._dims.logits)

    @property
    def probs(self) -> Tensor:
        """Probabilities of the options, ``[*B, sum(nvec)]``; each dimension sums to 1."""
        return self.logits.exp()

    @property
    def mean(self) -> Tensor:
        """The probabilities."""
        return self.probs

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones."""
        return constraints.independent(constraints.boolean, 1)

    @property
    def mode(self) -> Tensor:
        """Most probable legal option of each dimension, ``[*B, sum(nvec)]`` int64."""
        return self._layout.pack(self._dims.mode)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode."""
        return self.mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw one option per dimension, ``[*sample_shape, *B, sum(nvec)]`` int64."""
        return self._layout.pack(self._dims.sample(sample_shape))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw with a straight-through gradient, in the dtype of the logits."""
        return self._layout.pack(self._dims.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, sum(nvec)]``), shape ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self._names)
        return self._dims.log_prob(self._layout.pad(value, 0)).sum(-1)

    def entropy(self) -> Tensor:
        """Sum of the dimensions' entropies in nats, ``[*B]``."""
        return self._dims.entropy().sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All combinations of options, legal or not, ``[prod(nvec), *B, sum(nvec)]``."""
        device = self._dims.logits.device
        rows = torch.cartesian_prod(*(torch.arange(n, device=device) for n in self._layout.nvec))
        rows = rows.view(-1, len(self._layout.nvec), 1)
        hot = rows == torch.arange(self._layout.width, device=device)
        return spread(self._layout.pack(hot).long(), self, expand)


@register_kl(MaskedMultiOneHot, MaskedMultiOneHot)
def _kl_multi_one_hot(p: MaskedMultiOneHot, q: MaskedMultiOneHot) -> Tensor:
    return torch.distributions.kl_divergence(p._dims, q._dims).sum(-1)
