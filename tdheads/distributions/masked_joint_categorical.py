"""Several choices as one choice among their combinations, with a joint mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from tdheads.checks import shape_error
from tdheads.distributions.choices import ChoiceDistribution, check_passed_on, kl_of_choices
from tdheads.distributions.inputs import (
    check_is_mask,
    check_value_shape,
    check_whole,
    only_scores,
    spread,
)
from tdheads.distributions.layout import as_nvec
from tdheads.distributions.masked_categorical import (
    MaskedCategorical,
    check_same_choices,
    kl_of_log_probs,
)
from tdheads.distributions.masked_multi_categorical import MaskedMultiCategorical
from tdheads.distributions.supports import IntegerVector
from tdheads.keys import Names


class MaskedJointCategorical(ChoiceDistribution):
    r"""One categorical over the product of ``nvec`` options, with a joint mask.

    .. math:: p(a_1, \dots, a_k) \propto m_{a_1 \dots a_k} e^{z_{a_1 \dots a_k}}

    Args:
        logits: shape ``[*B, prod(nvec)]``, the last dimension of ``nvec`` varying fastest.
        nvec: number of options of each dimension.
        mask: shape ``[*B, *nvec]``, bool or 0/1 numbers.
        names, options: ``names``, ``probs`` (instead of ``logits``), ``on_empty``,
            ``validate_args`` as in :class:`MaskedCategorical`.

    Values have shape ``[*B, k]`` and dtype int64.

    Raises:
        ValueError: as :class:`MaskedCategorical`, and for logits that are not ``prod(nvec)`` wide.

    Source: the joint masks of Jumanji's BinPack and Tetris, https://arxiv.org/abs/2306.09884.

    Example:
        >>> mask = torch.tensor([[[True, False], [False, True]]])
        >>> dist = MaskedJointCategorical(torch.zeros(1, 4), [2, 2], mask)
        >>> dist.log_prob(torch.tensor([[[0, 0]], [[1, 1]], [[0, 1]]])).exp().squeeze(-1)
        tensor([0.5000, 0.5000, 0.0000])
    """

    has_enumerate_support = True

    def __init__(
        self,
        logits: Tensor | None = None,
        nvec: Sequence[int] = (),
        mask: Tensor | None = None,
        *,
        probs: Tensor | None = None,
        names: Names = Names(),
        **options: Any,
    ) -> None:
        check_passed_on(type(self), options)
        prepared = isinstance(nvec, tuple) and all(type(n) is int and n > 0 for n in nvec)
        self.nvec = tuple(nvec) if prepared and nvec else tuple(as_nvec("nvec", nvec))
        batch_shape = self._check(only_scores(logits, probs, names), mask, names)
        mask = None if mask is None else mask.flatten(-len(self.nvec))
        base = MaskedCategorical(logits, mask, probs=probs, names=names, **options)
        self._set(base, batch_shape, torch.Size([len(self.nvec)]))

    def _check(self, scores: Tensor, mask: Tensor | None, names: Names) -> torch.Size:
        check_is_mask(mask, names)
        batch_shape, size = scores.shape[:-1], math.prod(self.nvec)
        if scores.shape[-1] != size:
            todo = f"the last dim has one entry per combination of nvec={list(self.nvec)}"
            raise shape_error(names.params, (*batch_shape, size), scores, todo)
        if mask is not None and mask.shape != (*batch_shape, *self.nvec):
            todo = "a joint mask has one entry per combination; a factored one: joint=False"
            raise shape_error(names.mask, (*batch_shape, *self.nvec), mask, todo)
        return batch_shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of options of each dimension."""
        return self.nvec

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of k integers, each from 0 to its number of options - 1."""
        return IntegerVector(self.nvec)

    @property
    def mode(self) -> Tensor:
        """Most probable legal combination, ``[*B, k]``."""
        return self._split(self.base.mode)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw combinations, ``[*sample_shape, *B, k]`` int64."""
        return self._split(self.base.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, k]``), shape ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self.names)
        if self.validates:
            check_whole(value, self.names)
        options = value.long().unbind(-1)
        index, inside = torch.zeros_like(options[0]), torch.ones_like(options[0], dtype=torch.bool)
        for option, n in zip(options, self.nvec, strict=True):
            index = index * n + option
            inside = inside & (option >= 0) & (option < n)
        # an option beyond its dimension would alias another combination: it is illegal instead
        log_prob = self.base.log_prob(torch.where(inside, index, 0))
        return log_prob.masked_fill(~inside, -torch.inf)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All combinations of options, legal or not, ``[prod(nvec), *B, k]``."""
        index = torch.arange(self.base.num_events, device=self.logits.device)
        return spread(self._split(index), self, expand)

    def _split(self, index: Tensor) -> Tensor:
        options = []
        for n in reversed(self.nvec):
            options.append(index % n)
            index = index // n
        return torch.stack(options[::-1], -1)


register_kl(MaskedJointCategorical, MaskedJointCategorical)(kl_of_choices)


@register_kl(MaskedJointCategorical, MaskedMultiCategorical)
def _kl_to_factored(p: MaskedJointCategorical, q: MaskedMultiCategorical) -> Tensor:
    check_same_choices(p.sizes, q.sizes)
    return kl_of_log_probs(p.logits, q.product())


@register_kl(MaskedMultiCategorical, MaskedJointCategorical)
def _kl_from_factored(p: MaskedMultiCategorical, q: MaskedJointCategorical) -> Tensor:
    check_same_choices(p.sizes, q.sizes)
    return kl_of_log_probs(p.product(), q.logits)
