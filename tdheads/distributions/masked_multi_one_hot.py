"""Several one-hot choices in a row."""

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
from tdheads.distributions.draw import looks_first, score_draw
from tdheads.distributions.inputs import check_value_shape, spread
from tdheads.distributions.layout import Layout
from tdheads.distributions.masked_one_hot import MaskedOneHotCategorical
from tdheads.distributions.supports import OneHots
from tdheads.keys import Names


class MaskedMultiOneHot(ChoiceDistribution):
    r"""``k`` independent one-hot choices of ``nvec`` options each, concatenated.

    .. math:: \log p(a) = \sum_{d=1}^k \log p_d(a_d)

    Args:
        logits: packed, shape ``[*B, sum(nvec)]``.
        nvec: number of options of each dimension, or a prepared ``Layout``.
        mask: flat ``[*B, sum(nvec)]`` or padded ``[*B, k, max(nvec)]``, bool or 0/1 numbers.
        names, options: of :class:`MaskedOneHotCategorical`, ``probs`` packed as logits are.

    Values have shape ``[*B, sum(nvec)]``, with one 1 per dimension.

    Raises:
        ValueError: as :class:`MaskedOneHotCategorical`.

    Source: TorchRL's ``MultiOneHot`` spec.

    Example:
        >>> dist = MaskedMultiOneHot(torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0]]), [2, 3])
        >>> dist.mode
        tensor([[0, 1, 1, 0, 0]])
    """

    has_enumerate_support = True
    has_rsample = True
    option_names = (*ChoiceDistribution.option_names, "grad_method", "temperature")

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
        layout, base = packed_choices(MaskedOneHotCategorical, logits, nvec, mask, names, options)
        self._layout = layout
        self._set(base, base.batch_shape[:-1], torch.Size([layout.size]))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of options of each dimension."""
        return self._layout.nvec

    @property
    def logits(self) -> Tensor:
        """Log-probabilities of the options, ``[*B, sum(nvec)]``."""
        return self._layout.pack(self.base.logits)

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
        """One-hot vectors in a row."""
        return OneHots(self._layout)

    @property
    def mode(self) -> Tensor:
        """Most probable legal option of each dimension, ``[*B, sum(nvec)]`` int64."""
        return self._layout.pack(self.base.mode)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw one option per dimension, ``[*sample_shape, *B, sum(nvec)]`` int64."""
        return self._layout.pack(self.base.sample(sample_shape))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw with a straight-through gradient, in the dtype of the logits."""
        return self._layout.pack(self.base.rsample(sample_shape))

    @looks_first
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, sum(nvec)]``), shape ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self.names)
        return self.base.log_prob(self._layout.pad(value, 0)).sum(-1)

    def _score(self, value: Tensor) -> Tensor:
        """Log-probability of one-hots that were drawn here: nothing is checked again."""
        return score_draw(self.base, self._layout.pad(value, 0)).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All combinations of options, legal or not, ``[prod(nvec), *B, sum(nvec)]``."""
        device = self.base.logits.device
        rows = torch.cartesian_prod(*(torch.arange(n, device=device) for n in self._layout.nvec))
        rows = rows.view(-1, len(self._layout.nvec), 1)
        hot = rows == torch.arange(self._layout.width, device=device)
        return spread(self._layout.pack(hot).long(), self, expand)


register_kl(MaskedMultiOneHot, MaskedMultiOneHot)(kl_of_choices)
