"""Several categorical choices at once, each with a mask of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from tdheads.checks import eager
from tdheads.distributions.choices import (
    ChoiceDistribution,
    check_passed_on,
    kl_of_choices,
    packed_choices,
)
from tdheads.distributions.draw import looks_first, score_draw
from tdheads.distributions.inputs import (
    as_bool_mask,
    check_range,
    check_value_shape,
    only_scores,
    spread,
    upcast,
)
from tdheads.distributions.layout import Layout
from tdheads.distributions.masked_categorical import MaskedCategorical
from tdheads.distributions.scoring import Scores
from tdheads.distributions.supports import IntegerVector
from tdheads.keys import Names
from tdheads.looks import look


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
        packed = only_scores(logits, options.get("probs"), names)
        layout = nvec if isinstance(nvec, Layout) else Layout.named("nvec", nvec).to(packed.device)
        self._layout, self._names, self._graph = layout, names, torch.is_grad_enabled()
        self._validates = options.get("validate_args") is not False and eager()
        self._inputs: dict[str, Any] = {"logits": logits, "mask": mask, "options": options}
        self._base: Any = None
        self._scores = self._side_by_side(packed)
        rows = self.base.batch_shape[:-1] if self._scores is None else packed.shape[:-1]
        Distribution.__init__(self, rows, torch.Size([len(layout.nvec)]), validate_args=False)

    def _side_by_side(self, packed: Tensor) -> Scores | None:
        """Return the scores of packed choices; ``None`` where it takes the padded ones."""
        logits, mask, options = self._inputs.values()
        if isinstance(mask, Tensor) and mask.shape == (
            *packed.shape[:-1],
            *self._layout.inside.shape,
        ):
            mask = self._layout.pack(mask)
        flat = mask is None or (isinstance(mask, Tensor) and mask.shape == packed.shape)
        plain = logits is not None and options.get("on_empty", "error") == "error"
        if not (flat and plain and packed.shape[-1] == self._layout.size):
            return None
        mask = as_bool_mask(mask, packed.shape, self._names, self._validates)
        scores = upcast(packed)
        legal = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        log_probs = self._layout.log_softmax(legal)
        if self._validates:
            # the padded ones tell which row and dimension is at fault
            look(self._padded, packed, implied=lambda: log_probs[..., self._layout.start])
        return Scores(log_probs, scores, self._layout)

    @property
    def base(self) -> Any:
        """The choices padded to the widest, ``[*B, k, max(nvec)]``: made when they are needed."""
        if self._base is None:
            with torch.set_grad_enabled(self._graph):
                self._base = self._padded()
        return self._base

    @base.setter
    def base(self, base: Any) -> None:
        self._base, self._scores = base, None

    def _padded(self) -> Any:
        logits, mask, options = self._inputs.values()
        kind, layout = MaskedCategorical, self._layout
        return packed_choices(kind, logits, layout, mask, self._names, options)[1]

    @property
    def names(self) -> Names:
        """The keys that errors speak of."""
        return self._names

    @property
    def validates(self) -> bool:
        """Whether values are looked at (a host synchronisation)."""
        return self._validates

    @property
    def empty(self) -> Tensor | None:
        """Rows with nothing to choose, ``[*B]``; ``None`` if that is an error."""
        rows = None if self._scores is not None else self.base.empty
        return None if rows is None else rows.all(-1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of options of each dimension."""
        return self._layout.nvec

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

    @looks_first
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B, k]``), shape ``[*S, *B]``."""
        if self._scores is None:
            return self.base.log_prob(value).sum(-1)
        check_value_shape(value, self.batch_shape + self.event_shape, self.names)
        if self.validates:
            check_range(value, self._layout.width, self.names)
        option = value.long()
        inside = torch.minimum(option, self._layout.last).clamp_min(0)
        log_prob = self._scores.log_prob(inside + self._layout.start)
        # an option beyond its dimension would alias one of the next: it is illegal instead
        return log_prob.masked_fill((inside != option).any(-1), -torch.inf)

    def _score(self, value: Tensor) -> Tensor:
        """Log-probability of options that were drawn here: nothing is checked again."""
        scores = self._scores
        if scores is None:
            return score_draw(self.base, value).sum(-1)
        return scores.log_prob(value.long() + self._layout.start)

    def entropy(self) -> Tensor:
        """Entropy over the legal choices in nats, ``[*B]``."""
        scores = self._scores
        return self.base.entropy().sum(-1) if scores is None else scores.entropy()

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
