"""Categorical distribution over the legal choices of a mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from tdheads.checks import (
    check_finite,
    check_options,
    eager,
    rows_where,
    shape_error,
    show,
)
from tdheads.distributions.draw import looks_first
from tdheads.distributions.inputs import (
    as_bool_mask,
    check_value_shape,
    only_scores,
    score_in_range,
    spread,
    upcast,
)
from tdheads.distributions.movable import Movable
from tdheads.distributions.scoring import Scores
from tdheads.keys import Names
from tdheads.looks import look

#: what a row without a legal choice can be
ON_EMPTY = ("error", "neutral")


class MaskedCategorical(Movable, Distribution):
    r"""Categorical distribution in which only the choices allowed by ``mask`` have probability.

    .. math:: p_i = m_i e^{z_i} / \sum_j m_j e^{z_j}

    An illegal choice has probability exactly 0, log-prob ``-inf`` and exactly zero gradient; no
    finite number stands in for it. half and bfloat16 logits are computed in float32.

    Args:
        logits: unnormalised log-probabilities, shape ``[*B, n]``.
        mask: legal choices, shape ``[*B, n]``, bool or 0/1 numbers; ``None`` allows all.
        probs: instead of ``logits``: non-negative weights, shape ``[*B, n]``.
        on_empty: a row without a legal choice is an ``"error"``, or ``"neutral"``: it takes choice
            0 with log-prob 0, entropy 0, KL 0 and gradient 0.
        names: the keys that errors speak of.
        validate_args: whether to look at values (a host synchronisation). Independent of torch's
            global flag; off while compiling.

    Raises:
        ValueError: for a mask of another shape than the logits or with other values than 0 and 1,
            for ``nan`` logits and, with ``on_empty="error"``, for a row without a legal choice.

    Source: Huang and Ontañón, "A Closer Look at Invalid Action Masking in Policy Gradient
    Algorithms", https://arxiv.org/abs/2006.14171.

    Example:
        >>> dist = MaskedCategorical(torch.zeros(1, 3), torch.tensor([[True, False, True]]))
        >>> dist.probs
        tensor([[0.5000, 0.0000, 0.5000]])
        >>> dist.log_prob(torch.tensor([1]))
        tensor([-inf])
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
        scores = only_scores(logits, probs, names)
        if on_empty not in ON_EMPTY:
            check_options("on_empty", on_empty, ON_EMPTY)
        checks = validate_args is not False and eager()
        mask = as_bool_mask(mask, scores.shape, names, checks)
        if not scores.ndim or not scores.shape[-1]:
            raise shape_error(
                names.params, "[*B, n] with n >= 1", scores, "give one entry per choice"
            )
        given = scores
        self._given = "probs" if logits is None else "logits"
        scores = upcast(scores)
        if logits is None:
            scores = _log_of(scores)
        self.empty = None if mask is None or on_empty == "error" else ~mask.any(-1)
        self.logits = _legal_log_probs(scores, mask, self.empty)
        # the gradient of an empty row is 0 whatever comes back, nan too: the steps see to that
        self._scores = Scores(self.logits, scores if self.empty is None else None)
        self.validates = checks
        self.names = names
        # log_softmax of a row is nan throughout if the row is empty or holds nan or +inf
        if checks:

            def explain() -> None:
                check_finite(given, names.params, "look at the network that wrote it")
                self._check_rows(mask)

            look(explain, given, implied=lambda: self.logits[..., 0])
        super().__init__(scores.shape[:-1], validate_args=False)

    def _check_rows(self, mask: Tensor | None) -> None:
        bad = self.logits[..., 0].isnan()
        if not bad.any():
            return
        if mask is not None and (empty := ~mask.any(-1)).any() and self.empty is None:
            raise ValueError(
                f"{show(self.names.mask)}: no legal choice in {rows_where(empty)}; allow one in"
                " each row, or build the head with on_empty='neutral' if such rows are normal"
            )
        todo = "a row needs a finite logit on a legal choice and no +inf"
        if self._given == "probs":
            todo = "a row of probs needs a positive one on a legal choice and no negative one"
        raise ValueError(
            f"{show(self.names.params)}: no finite distribution in {rows_where(bad)}; {todo}"
        )

    def expand(self, batch_shape: Any, _instance: Any = None) -> MaskedCategorical:
        """Return a view of the distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.logits = self.logits.expand(*batch_shape, self.num_events)
        new._scores = Scores(new.logits)
        new.empty = None if self.empty is None else self.empty.expand(batch_shape)
        new.validates, new.names = self.validates, self.names
        Distribution.__init__(new, batch_shape, validate_args=False)
        return new

    @property
    def num_events(self) -> int:
        """Number of choices ``n``, legal or not."""
        return self.logits.shape[-1]

    @property
    def probs(self) -> Tensor:
        """Probabilities ``[*B, n]``, exactly 0 where illegal."""
        return self.logits.exp()

    @property
    def mask(self) -> Tensor:
        """Choices that have probability, ``[*B, n]``."""
        return self.logits != -torch.inf

    @property
    def support(self) -> constraints.Constraint:
        """The integers 0 to n - 1."""
        return constraints.integer_interval(0, self.num_events - 1)

    @property
    def mode(self) -> Tensor:
        """Most probable legal choice, the first one on ties, ``[*B]``."""
        return self.logits.argmax(-1)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode: what acting without exploration takes."""
        return self.mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw choices, ``[*sample_shape, *B]`` int64, by the Gumbel-max rule."""
        scores = self.gumbel_scores(torch.Size(sample_shape))
        return scores.detach().argmax(-1) if scores.requires_grad else scores.argmax(-1)

    def gumbel_scores(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        """Log-probabilities plus Gumbel noise, whose largest entry is a sample; ``[*S, *B, n]``."""
        wide = self.logits
        if sample_shape:
            wide = wide.expand(sample_shape + wide.shape)
        # made from the logits, so that vmap knows that the noise is batched
        noise = torch.empty_like(wide, memory_format=torch.contiguous_format, requires_grad=False)
        # an exponential of 0 would give -inf + inf = nan, which argmax prefers
        noise.exponential_().clamp_min_(torch.finfo(noise.dtype).tiny).log_()
        return self.logits - noise

    @looks_first
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B]``, any integer dtype); illegal: ``-inf``."""
        check_value_shape(value, self.batch_shape, self.names)
        if self.validates:
            return score_in_range(self._score, value, self.num_events, self.names)
        return self._score(value)

    def _score(self, value: Tensor) -> Tensor:
        """Log-probability of choices that were drawn here: nothing is checked again."""
        return self._scores.log_prob(value.long().unsqueeze(-1))

    def entropy(self) -> Tensor:
        """Entropy over the legal choices in nats, ``[*B]``."""
        return self._scores.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All choices, legal or not, ``[n, *B]`` (``[n, 1, ...]`` with ``expand=False``)."""
        return spread(torch.arange(self.num_events, device=self.logits.device), self, expand)


def _log_of(probs: Tensor) -> Tensor:
    # log(0) has gradient inf, and inf * 0 is nan further up: zeros are set apart before the log
    zero = probs == 0
    return probs.masked_fill(zero, 1).log().masked_fill(zero, -torch.inf)


def _legal_log_probs(logits: Tensor, mask: Tensor | None, empty: Tensor | None) -> Tensor:
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    if empty is not None:
        only_first = torch.full_like(logits[..., :1].detach(), 0).expand_as(logits)
        rest = torch.arange(logits.shape[-1], device=logits.device) > 0
        only_first = only_first.masked_fill(rest, -torch.inf)
        logits = torch.where(empty.unsqueeze(-1), only_first, logits)
    return logits.log_softmax(-1)


def check_same_choices(p: Any, q: Any) -> None:
    """Refuse the KL of distributions over other choices: nothing is broadcast.

    Example:
        >>> check_same_choices((2, 3), (2, 3))
    """
    if p != q:
        raise ValueError(f"KL: expected the same choices on both sides, got {p} and {q}")


def kl_of_log_probs(p: Tensor, q: Tensor) -> Tensor:
    """KL of two categoricals, from their log-probabilities: ``[*B, n]`` -> ``[*B]``.

    Example:
        >>> half = torch.tensor([0.5, 0.5]).log()
        >>> kl_of_log_probs(torch.tensor([0.0, -torch.inf]), half)
        tensor(0.6931)
    """
    check_same_choices(p.shape[-1], q.shape[-1])
    legal, never = p != -torch.inf, q == -torch.inf
    # -inf only ever meets probability 0; 0 * -inf would be nan in value and in gradient
    terms = p.exp() * torch.where(legal, p - q.masked_fill(never, 0), 0)
    # inf also where the probability rounds to 0: 0 * inf would be nan
    return terms.masked_fill(legal & never, torch.inf).sum(-1)


@register_kl(MaskedCategorical, MaskedCategorical)
def _kl_masked_categorical(p: MaskedCategorical, q: MaskedCategorical) -> Tensor:
    return kl_of_log_probs(p.logits, q.logits)
