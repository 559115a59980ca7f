"""Several choices as one choice among their combinations, with a joint mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from tdheads.checks import shape_error
from tdheads.distributions.masked_categorical import (
    MaskedCategorical,
    check_value_shape,
    spread,
)
from tdheads.distributions.movable import Movable
from tdheads.keys import Names


class MaskedJointCategorical(Movable, Distribution):
    r"""One categorical over the product of ``nvec`` options, with a joint mask.

    .. math:: p(a_1, \dots, a_k) \propto m_{a_1 \dots a_k} e^{z_{a_1 \dots a_k}}

    Args:
        logits: shape ``[*B, prod(nvec)]``, the last dimension of ``nvec`` varying fastest.
        nvec: number of options of each dimension.
        mask: shape ``[*B, *nvec]``, bool or 0/1 numbers.
        on_empty, names, validate_args: as in :class:`MaskedCategorical`.

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

    arg_constraints: dict[str, constraints.Constraint] = {}
    closed = True
    has_enumerate_support = True

    def __init__(
        self,
        logits: Tensor,
        nvec: Sequence[int],
        mask: Tensor | None = None,
        *,
        on_empty: str = "error",
        names: Names = Names(),
        validate_args: bool | None = None,
    ) -> None:
        self.nvec = tuple(int(n) for n in nvec)
        batch_shape, size = logits.shape[:-1], math.prod(self.nvec)
        if logits.shape[-1] != size:
            todo = f"the last dim has one entry per combination of nvec={list(self.nvec)}"
            raise shape_error(names.params, (*batch_shape, size), logits, todo)
        if mask is not None:
            if mask.shape != (*batch_shape, *self.nvec):
                todo = "a joint mask has one entry per combination; a factored one: joint=False"
                raise shape_error(names.mask, (*batch_shape, *self.nvec), mask, todo)
            mask = mask.flatten(-len(self.nvec))
        self._product = MaskedCategorical(
            logits, mask, on_empty=on_empty, names=names, validate_args=validate_args
        )
        self._names = names
        super().__init__(batch_shape, torch.Size([len(self.nvec)]), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedJointCategorical:
        """Return a view of the distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.nvec, new._names = self.nvec, self._names
        new._product = self._product.expand(batch_shape)
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        return new

    @property
    def empty(self) -> Tensor | None:
        """Rows without a legal combination, ``[*B]``; ``None`` if that is an error."""
        return self._product.empty

    @property
    def validates(self) -> bool:
        """Whether values are looked at (a host synchronisation)."""
        return self._product.validates

    @property
    def logits(self) -> Tensor:
        """Log-probabilities of the combinations, ``[*B, prod(nvec)]``."""
        return self._product.logits

    @property
    def probs(self) -> Tensor:
        """Probabilities of the combinations, ``[*B, prod(nvec)]``."""
        return self._product.probs

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of k non-negative integers."""
        return constraints.independent(constraints.nonnegative_integer, 1)

    @property
    def mode(self) -> Tensor:
        """Most probable legal combination, ``[*B, k]``."""
        return self._split(self._product.mode)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode."""
        return self.mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw combinations, ``[*sample_shape, *B, k]`` int64."""
        return self._split(self._product.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, k]``), shape ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self._names)
        options = value.long().unbind(-1)
        index, inside = torch.zeros_like(options[0]), torch.ones_like(options[0], dtype=torch.bool)
        for option, n in zip(options, self.nvec, strict=True):
            index = index * n + option
            inside = inside & (option >= 0) & (option < n)
        # an option beyond its dimension would alias another combination: it is illegal instead
        log_prob = self._product.log_prob(torch.where(inside, index, 0))
        return log_prob.masked_fill(~inside, -torch.inf)

    def entropy(self) -> Tensor:
        """Entropy over the legal combinations in nats, ``[*B]``."""
        return self._product.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All combinations of options, legal or not, ``[prod(nvec), *B, k]``."""
        index = torch.arange(self._product.num_events, device=self.logits.device)
        return spread(self._split(index), self, expand)

    def _split(self, index: Tensor) -> Tensor:
        options = []
        for n in reversed(self.nvec):
            options.append(index % n)
            index = index // n
        return torch.stack(options[::-1], -1)


@register_kl(MaskedJointCategorical, MaskedJointCategorical)
def _kl_joint(p: MaskedJointCategorical, q: MaskedJointCategorical) -> Tensor:
    return torch.distributions.kl_divergence(p._product, q._product)
