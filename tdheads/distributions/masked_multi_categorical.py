"""Several categorical choices at once, with factored or joint masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from tdheads.checks import shape_error
from tdheads.distributions.masked_categorical import MaskedCategorical, check_value_shape
from tdheads.keys import Names


class Layout(torch.nn.Module):
    r"""Where the choices of each dimension stand in a packed row ``[*B, sum(nvec)]``.

    ``pad`` turns a packed row into ``[*B, k, max(nvec)]`` with one gather, without a loop over the
    dimensions. Dimensions of equal size need no gather: the padded row is a view.

    Example:
        >>> Layout([2, 3]).pad(torch.arange(5.0), fill=-1.0)
        tensor([[ 0.,  1., -1.],
                [ 2.,  3.,  4.]])
    """

    index: Tensor
    inside: Tensor

    def __init__(self, nvec: Sequence[int], device: torch.device | None = None) -> None:
        super().__init__()
        self.nvec = tuple(int(n) for n in nvec)
        if not self.nvec or min(self.nvec) < 1:
            raise ValueError(f"nvec: expected one positive size per dimension, got {list(nvec)}")
        self.width = max(self.nvec)
        self.equal = min(self.nvec) == self.width
        column = torch.arange(self.width, device=device)
        sizes = torch.tensor(self.nvec, device=device).unsqueeze(-1)
        inside = column < sizes
        start = (sizes.cumsum(0) - sizes).expand_as(inside)
        # outside of its dimension a column points at its first entry, and is then filled
        index = torch.where(inside, start + column, start)
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("inside", inside, persistent=False)

    @property
    def size(self) -> int:
        """Length ``sum(nvec)`` of a packed row."""
        return sum(self.nvec)

    def pad(self, packed: Tensor, fill: float | bool) -> Tensor:
        """Unpack ``[*B, sum(nvec)]`` into ``[*B, k, max(nvec)]``, with ``fill`` outside."""
        if self.equal:
            return packed.unflatten(-1, (len(self.nvec), self.width))
        return packed[..., self.index].masked_fill(~self.inside, fill)

    def pad_mask(self, mask: Tensor, batch_shape: torch.Size, names: Names) -> Tensor:
        """Read a flat ``[*B, sum(nvec)]`` or padded ``[*B, k, max(nvec)]`` mask as padded."""
        padded = (*batch_shape, *self.inside.shape)
        if mask.shape == (*batch_shape, self.size):
            return self.pad(mask, False)
        if mask.shape == padded:
            return mask if self.equal else mask.masked_fill(~self.inside, False)
        todo = (
            "a factored mask is flat or padded to the widest dimension; a mask over the product of"
            " the choices needs joint=True"
        )
        raise shape_error(names.mask, f"{[*batch_shape, self.size]} or {list(padded)}", mask, todo)


class MaskedMultiCategorical(Distribution):
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
        layout = nvec if isinstance(nvec, Layout) else Layout(nvec, logits.device)
        batch_shape = logits.shape[:-1]
        if logits.shape[-1] != layout.size:
            todo = f"the last dim packs the options of nvec={list(layout.nvec)}"
            raise shape_error(names.params, (*batch_shape, layout.size), logits, todo)
        if mask is not None:
            mask = layout.pad_mask(mask, batch_shape, names)
        elif not layout.equal:
            mask = layout.inside.expand(*batch_shape, -1, -1)
        self._dims = MaskedCategorical(
            layout.pad(logits, 0.0),
            mask,
            on_empty=on_empty,
            names=names,
            validate_args=validate_args,
        )
        super().__init__(batch_shape, self._dims.batch_shape[-1:], validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedMultiCategorical:
        """Return a view of the distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new._dims = self._dims.expand(batch_shape + self.event_shape)
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


class MaskedJointCategorical(Distribution):
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

    def _split(self, index: Tensor) -> Tensor:
        options = []
        for n in reversed(self.nvec):
            options.append(index % n)
            index = index // n
        return torch.stack(options[::-1], -1)


@register_kl(MaskedMultiCategorical, MaskedMultiCategorical)
def _kl_multi(p: MaskedMultiCategorical, q: MaskedMultiCategorical) -> Tensor:
    return torch.distributions.kl_divergence(p._dims, q._dims).sum(-1)


@register_kl(MaskedJointCategorical, MaskedJointCategorical)
def _kl_joint(p: MaskedJointCategorical, q: MaskedJointCategorical) -> Tensor:
    return torch.distributions.kl_divergence(p._product, q._product)
