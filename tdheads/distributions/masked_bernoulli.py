"""Independent bits, of which a mask allows some to be 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.nn.functional import logsigmoid

from tdheads.checks import check_finite, check_options, eager, rows_where, show
from tdheads.distributions.draw import looks_first
from tdheads.distributions.inputs import (
    as_bool_mask,
    check_value_shape,
    only_scores,
    spread,
    upcast,
)
from tdheads.distributions.masked_categorical import check_same_choices
from tdheads.distributions.movable import Movable
from tdheads.keys import Names
from tdheads.looks import look
from tdheads.reduce import add, sum_event


class MaskedBernoulli(Movable, Distribution):
    r"""``n`` independent bits; a masked bit is 0 for certain.

    .. math:: \log p(a) = \sum_{i: m_i = 1} a_i \log \sigma(z_i) + (1 - a_i) \log \sigma(-z_i)

    and ``-inf`` where a masked bit is 1. Everything is computed from the logits, so probabilities
    that round to 0 or 1 give no ``nan``.

    Args:
        logits: log-odds of each bit, shape ``[*B, n]``; ``inf`` and ``-inf`` are certain bits.
        mask: bits that may be 1, shape ``[*B, n]``, bool or 0/1 numbers; ``None`` allows all.
        probs: instead of ``logits``: probability of each bit to be 1, shape ``[*B, n]``.
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
        logits: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        probs: Tensor | None = None,
        on_empty: str = "error",
        names: Names = Names(),
        validate_args: bool | None = None,
    ) -> None:
        scores = only_scores(logits, probs, names, "bit")
        check_options("on_empty", on_empty, ("error", "neutral"))
        self.validates = validate_args is not False and eager()
        self.names = names
        mask = as_bool_mask(mask, scores.shape, names, self.validates)
        empty = None if mask is None else ~mask.any(-1)
        self.empty = None if on_empty == "error" else empty
        self.logits = given = upcast(scores) if logits is not None else _log_odds(upcast(scores))
        if self.validates:
            todo = "look at the network that wrote it; probs are numbers from 0 to 1"
            look(lambda: check_finite(given, names.params, todo), given)
            self._check_rows(empty)
        if mask is not None:
            # a masked bit is 0 for certain, and gets no gradient
            self.logits = self.logits.masked_fill(~mask, -torch.inf)
        super().__init__(scores.shape[:-1], scores.shape[-1:], validate_args=False)

    def _check_rows(self, empty: Tensor | None) -> None:
        if empty is not None and self.empty is None and empty.any():
            raise ValueError(
                f"{show(self.names.mask)}: no bit may be 1 in {rows_where(empty)}; allow one in"
                " each row, or build the head with on_empty='neutral' if such rows are normal"
            )

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedBernoulli:
        """Return a view of the distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.validates, new.names = self.validates, self.names
        new.logits = self.logits.expand(batch_shape + self.event_shape)
        new.empty = None if self.empty is None else self.empty.expand(batch_shape)
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        return new

    @property
    def probs(self) -> Tensor:
        """Probability of each bit to be 1, ``[*B, n]``, exactly 0 where masked."""
        return self.logits.sigmoid()

    @property
    def mask(self) -> Tensor:
        """Bits that may be 1, ``[*B, n]``."""
        return self.logits != -torch.inf

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

    @looks_first
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, n]``, any dtype), shape ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self.names)
        if self.validates:
            self._check_bits(value)
        return self._score(value)

    def _score(self, value: Tensor) -> Tensor:
        """Log-probability of bits that were drawn here: nothing is checked again."""
        one, zero = self._log_probs()
        return sum_event(torch.where(value == 1, one, zero), 1)

    def _log_probs(self) -> tuple[Tensor, Tensor]:
        """Log-probs of each bit to be 1 and to be 0; a certain bit has no gradient."""
        # logsigmoid and not softplus, which torch cuts off at 20
        certain = self.logits.isinf()
        free = self.logits.masked_fill(certain, 0)
        one = torch.where(certain, self.logits.clamp_max(0), logsigmoid(free))
        zero = torch.where(certain, (-self.logits).clamp_max(0), logsigmoid(-free))
        return one, zero

    def _check_bits(self, value: Tensor) -> None:
        bad = ((value != 0) & (value != 1)).any(-1)
        if bad.any():
            raise ValueError(
                f"{show(self.names.value)}: expected zeros and ones, got"
                f" {value[bad][0].tolist()} in {rows_where(bad)}"
            )

    def entropy(self) -> Tensor:
        """Sum of the bits' entropies in nats, ``[*B]``."""
        return -sum_event(add(_times_log(x, x) for x in self._log_probs()), 1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All vectors of bits, legal or not, ``[2 ** n, *B, n]``."""
        place = torch.arange(self.event_shape[0], device=self.logits.device)
        bits = torch.arange(2 ** len(place), device=self.logits.device).unsqueeze(-1) >> place
        return spread(bits % 2, self, expand)


def _log_odds(probs: Tensor) -> Tensor:
    # the log of 0 has gradient inf, and inf * 0 is nan further up: certain bits are set apart
    never, always = probs == 0, probs == 1
    odds = probs.masked_fill(never | always, 0.5).logit()
    return odds.masked_fill(never, -torch.inf).masked_fill(always, torch.inf)


def _times_log(p: Tensor, log: Tensor) -> Tensor:
    """Return ``exp(p) log``, 0 where ``p`` is ``-inf``."""
    never = p == -torch.inf
    term = p.exp() * log.masked_fill(never | (log == -torch.inf), 0)
    return term.masked_fill(~never & (log == -torch.inf), -torch.inf)


@register_kl(MaskedBernoulli, MaskedBernoulli)
def _kl_masked_bernoulli(p: MaskedBernoulli, q: MaskedBernoulli) -> Tensor:
    check_same_choices(p.event_shape[0], q.event_shape[0])
    sides = zip(p._log_probs(), q._log_probs(), strict=True)
    return sum_event(add(_times_log(a, a) - _times_log(a, b) for a, b in sides), 1)
