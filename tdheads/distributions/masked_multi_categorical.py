"""Several categorical choices at once, each with a mask of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from tdheads.distributions.choices import (
    ChoiceDistribution,
    check_passed_on,
    kl_of_choices,
    packed_choices,
)
from tdheads.distributions.inputs import spread
from tdheads.distributions.layout import Layout
from tdheads.distributions.masked_categorical import MaskedCategorical
from tdheads.distributions.supports import IntegerVector
from tdheads.keys import Names


class MaskedMultiCategorical(ChoiceDistribution):
    r"""``k`` independent categorical choices of ``nvec`` options each, with a factored mask.

    .. math:: \log p(a) = \sum_{d=1}^k \log p_d(a_d)

    Args:
        logits: packed, shape ``[*B, sum(nvec)]``.
        nvec: number of options of each dimension, or a prepared :class:`Layout`.
        mask: ``[*B, sum(nvec)]`` or ``[*B, k, max(nvec)]``, bool or 0/1 numbers.
        names, options: ``names``, ``probs`` (instead of ``logits``, packed as they are),
            ``on_empty``, ``validate_args`` as in :class:`MaskedCategorical`; a dimension without a
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

    has_enumerate_support = True

    def __init__(
        self,
        logits: Tensor | None = None,
        nvec: Sequence[int] | Layout = (),
        mask: Tensor | None = None,
        *,
        names: Names = Names(),
        **options: Any,
    ) -> None:
        check_passed_on(type(self), options)
        layout, base = packed_choices(MaskedCategorical, logits, nvec, mask, names, options)
        self._sizes = layout.nvec
        self._set(base, base.batch_shape[:-1], base.batch_shape[-1:])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of options of each dimension."""
        return self._sizes

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of k integers, each from 0 to its number of options - 1."""
        return IntegerVector(self.sizes)

    @property
    def mode(self) -> Tensor:
        """Most probable legal option of each dimension, ``[*B, k]``."""
        return self.base.mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw one option per dimension, ``[*sample_shape, *B, k]`` int64."""
        return self.base.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, k]``), shape ``[*S, *B]``."""
        return self.base.log_prob(value).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All combinations of options, legal or not, ``[prod(nvec), *B, k]``."""
        options = [torch.arange(n, device=self.logits.device) for n in self.sizes]
        return spread(torch.cartesian_prod(*options).view(-1, len(options)), self, expand)

    def product(self) -> Tensor:
        """Log-probabilities of all combinations, as :class:`MaskedJointCategorical` has them.

        Shapes: ``[*B, prod(nvec)]``, the last dimension of ``nvec`` varying fastest.
        """
        total = self.logits.new_zeros((*self.batch_shape, 1))
        for dim, n in enumerate(self.sizes):
            total = (total.unsqueeze(-1) + self.logits[..., dim, None, :n]).flatten(-2)
        return total


register_kl(MaskedMultiCategorical, MaskedMultiCategorical)(kl_of_choices)
