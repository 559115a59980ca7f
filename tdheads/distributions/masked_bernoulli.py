"""Independent bits, of which a mask allows some to be 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.nn.functional import softplus

from tdheads.checks import check_finite, check_options, eager, rows_where, show
from tdheads.distributions.masked_categorical import (
    as_bool_mask,
    check_value_shape,
    spread,
    upcast,
)
from tdheads.distributions.movable import Movable
from tdheads.keys import Names
from tdheads.reduce import sum_event


class MaskedBernoulli(Movable, Distribution):
    r"""``n`` independent bits; a masked bit is 0 for certain.

    .. math:: \log p(a) = \sum_{i: m_i = 1} a_i \log \sigma(z_i) + (1 - a_i) \log \sigma(-z_i)

    and ``-inf`` where a masked bit is 1. Everything is computed from the logits, so probabilities
    that round to 0 or 1 give no ``nan``.

    Args:
        logits: log-odds of each bit, shape ``[*B, n]``.
        mask: bits that may be 1, shape ``[*B, n]``, bool or 0/1 numbers; ``None`` allows all.
        on_empty: a row in which no bit may be 1 is an ``"error"``, or ``"neutral"``: all bits are 0
            and the row counts nothing.
        names, validate_args: as in :class:`~tdheads.distributions.MaskedCategorical`.

    Values have shape ``[*B, n]``.

    Raises:
        ValueError: for a mask of another shape or with other values than 0 and 1, for ``nan``
            logits, for a row in which no bit may be 1, and by ``log_prob`` for other values than
            0 and 1.

    Source: Gymnasium's ``MultiBinary`` space.

    Example:
        >>> dist = MaskedBernoulli(torch.zeros(1, 3), torch.tensor([[1, 0, 1]]))
        >>> dist.log_prob(torch.tensor([[1, 0, 0]])).exp()
        tensor([0.2500])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    closed = True
    has_enumerate_support = True

    def __init__(
        self,
        logits: Tensor,
        mask: Tensor | None = None,
        *,
        on_empty: str = "error",
        names: Names = Names(),
        validate_args: bool | None = None,
    ) -> None:
        check_options("on_empty", on_empty, ("error", "neutral"))
        self.validates = validate_args is not False and eager()
        self._names = names
        self.mask = as_bool_mask(mask, logits.shape, names, self.validates)
        self.logits = upcast(logits)
        if self.mask is not None:
            # a masked bit is certain: its log-odds take no part, and get no gradient
            self.logits = self.logits.masked_fill(~self.mask, 0)
        self.empty = None
        if self.mask is not None and on_empty == "neutral":
            self.empty = ~self.mask.any(-1)
        if self.validates:
            check_finite(logits, names.params, "look at the network that wrote it")
            self._check_rows()
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=False)

    def _check_rows(self) -> None:
        if self.mask is None or self.empty is not None:
            return
        empty = ~self.mask.any(-1)
        if empty.any():
            raise ValueError(
                f"{show(self._names.mask)}: no bit may be 1 in {rows_where(empty)}; allow one in"
                " each row, or build the head with on_empty='neutral' if such rows are normal"
            )

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedBernoulli:
        """Return a view of the distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.validates, new._names = self.validates, self._names
        new.logits = self.logits.expand(batch_shape + self.event_shape)
        new.mask = None if self.mask is None else self.mask.expand(batch_shape + self.event_shape)
        new.empty = None if self.empty is None else self.empty.expand(batch_shape)
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        return new

    @property
    def probs(self) -> Tensor:
        """Probability of each bit to be 1, ``[*B, n]``, exactly 0 where masked."""
        return self._legal(self.logits.sigmoid())

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
        """Each bit's likelier value, 0 on ties, ``[*B, n]`` int64."""
        return (self.logits > 0).long()

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode."""
        return self.mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw bits, ``[*sample_shape, *B, n]`` int64."""
        with torch.no_grad():
            shape = torch.Size(sample_shape) + self.logits.shape
            uniform = torch.rand(shape, dtype=self.logits.dtype, device=self.logits.device)
            return (uniform < self.probs).long()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, n]``, any dtype), shape ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self._names)
        if self.validates:
            self._check_bits(value)
        one = value == 1
        log_prob = -softplus(torch.where(one, -self.logits, self.logits))
        if self.mask is not None:
            log_prob = self._legal(log_prob).masked_fill(one & ~self.mask, -torch.inf)
        return sum_event(log_prob, 1)

    def _check_bits(self, value: Tensor) -> None:
        bad = ((value != 0) & (value != 1)).any(-1)
        if bad.any():
            raise ValueError(
                f"{show(self._names.value)}: expected zeros and ones, got"
                f" {value[bad][0].tolist()} in {rows_where(bad)}"
            )

    def entropy(self) -> Tensor:
        """Sum of the bits' entropies in nats, ``[*B]``."""
        p, q = self.logits.sigmoid(), (-self.logits).sigmoid()
        return sum_event(self._legal(p * softplus(-self.logits) + q * softplus(self.logits)), 1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All vectors of bits, legal or not, ``[2 ** n, *B, n]``."""
        place = torch.arange(self.event_shape[0], device=self.logits.device)
        bits = torch.arange(2 ** len(place), device=self.logits.device).unsqueeze(-1) >> place
        return spread(bits % 2, self, expand)

    def _legal(self, x: Tensor) -> Tensor:
        return x if self.mask is None else x.masked_fill(~self.mask, 0)


@register_kl(MaskedBernoulli, MaskedBernoulli)
def _kl_masked_bernoulli(p: MaskedBernoulli, q: MaskedBernoulli) -> Tensor:
    x, y = p.logits, q.logits
    kl = x.sigmoid() * (softplus(-y) - softplus(-x)) + (-x).sigmoid() * (softplus(y) - softplus(x))
    if p.mask is not None:
        kl = torch.where(p.mask, kl, softplus(y))  # p is 0 for certain
    if q.mask is not None:
        allowed = ~q.mask if p.mask is None else ~q.mask & p.mask
        kl = kl.masked_fill(~q.mask, 0).masked_fill(allowed, torch.inf)
    return sum_event(kl, 1)
