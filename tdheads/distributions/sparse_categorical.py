"""Categorical distribution over a short list of legal choices out of very many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from tdheads.arguments import check_count
from tdheads.checks import rows_where, shape_error, show
from tdheads.distributions.choices import ChoiceDistribution, check_passed_on
from tdheads.distributions.inputs import check_range, check_value_shape, only_scores, spread
from tdheads.distributions.masked_categorical import (
    MaskedCategorical,
    check_same_choices,
    kl_of_log_probs,
)
from tdheads.keys import Names


class SparseCategorical(ChoiceDistribution):
    r"""Categorical over the choices in ``legal_index``, out of ``n``.

    .. math:: p(a) = \frac{e^{z_j}}{\sum_k e^{z_k}} \;\text{where}\; legal\_index_j = a

    Equal in every result to a :class:`MaskedCategorical` of width ``n`` whose mask allows the
    listed choices; what is computed and kept has the width ``M`` of the list.

    Args:
        logits: of the listed choices, shape ``[*B, M]``.
        legal_index: the legal choices, each once, -1 as padding, shape ``[*B, M]``.
        n: number of choices in all.
        names, options: ``names``, ``on_empty``, ``validate_args`` as in :class:`MaskedCategorical`.

    ``logits`` and ``probs`` are of the listed choices, ``[*B, M]``, ``-inf`` and 0 for padding.
    Values are choices, shape ``[*B]`` int64; one that is not listed has log-prob ``-inf``.

    Raises:
        ValueError: as :class:`MaskedCategorical`; for an index that is listed twice or is not one
            of -1 to n - 1.

    Source: the sparse masks of TorchRL's ``MaskedCategorical``, made exact.

    Example:
        >>> dist = SparseCategorical(torch.zeros(1, 3), torch.tensor([[7, 2, -1]]), n=1000)
        >>> dist.log_prob(torch.tensor([7])).exp()
        tensor([0.5000])
        >>> dist.log_prob(torch.tensor([3]))
        tensor([-inf])
    """

    has_enumerate_support = True
    option_names = ("names", "on_empty", "validate_args")

    def __init__(
        self,
        logits: Tensor,
        legal_index: Tensor,
        n: int,
        *,
        names: Names = Names(),
        **options: Any,
    ) -> None:
        check_passed_on(type(self), options)
        only_scores(logits, None, names)
        check_list(legal_index, n, names)
        if legal_index.shape != logits.shape:
            raise shape_error(names.mask, logits.shape, legal_index, "one entry per logit")
        self.legal_index, self.n = legal_index.long(), int(n)
        listed = MaskedCategorical(logits, self.legal_index >= 0, names=names, **options)
        self._set(listed, listed.batch_shape, torch.Size())
        if self.validates:
            self._check_index()

    def _check_index(self) -> None:
        key, index = self.names.mask, self.legal_index
        bad = ((index < -1) | (index >= self.n)).any(-1)
        if bad.any():
            last = self.n - 1
            raise ValueError(f"{show(key)}: expected -1 to {last}, got others in {rows_where(bad)}")
        ordered = index.sort(-1).values
        twice = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(-1)
        if twice.any():
            raise ValueError(f"{show(key)}: a choice is listed twice in {rows_where(twice)}")

    def expand(self, batch_shape: Any, _instance: Any = None) -> SparseCategorical:
        """Return a view of the distribution with a larger batch shape."""
        new = super().expand(batch_shape, _instance)
        new.legal_index = self.legal_index.expand(new.logits.shape)
        return new

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of choices, listed or not."""
        return (self.n,)

    @property
    def support(self) -> constraints.Constraint:
        """The integers 0 to n - 1."""
        return constraints.integer_interval(0, self.n - 1)

    @property
    def mode(self) -> Tensor:
        """Most probable legal choice, ``[*B]``."""
        return self._choice(self.base.mode)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw choices, ``[*sample_shape, *B]`` int64."""
        return self._choice(self.base.sample(sample_shape))

    def _choice(self, place: Tensor) -> Tensor:
        index = self.legal_index.expand(*place.shape, -1)
        # a row with nothing to choose lists -1 and takes choice 0
        return index.gather(-1, place.unsqueeze(-1)).squeeze(-1).clamp_min(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B]``); a choice that is not listed: ``-inf``."""
        check_value_shape(value, self.batch_shape, self.names)
        if self.validates:
            check_range(value, self.n, self.names)
        here = self.legal_index == value.long().unsqueeze(-1)
        if self.empty is not None:  # there choice 0 is taken for certain, from the first place
            first = torch.arange(here.shape[-1], device=here.device) == 0
            here = torch.where(self.empty.unsqueeze(-1), first & (value == 0).unsqueeze(-1), here)
        score = self.base.log_prob(here.to(torch.int8).argmax(-1))
        # nan stays nan: a row of nan has it at every place
        return score.masked_fill(~here.any(-1) & ~score.isnan(), -torch.inf)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All choices, legal or not, ``[n, *B]`` (``[n, 1, ...]`` with ``expand=False``)."""
        return spread(torch.arange(self.n, device=self.logits.device), self, expand)

    def dense(self) -> Tensor:
        """Log-probabilities of all choices, ``[*B, n]``, as :class:`MaskedCategorical` has them."""
        # padding goes to a place of its own, which is cut off
        place = torch.where(self.legal_index >= 0, self.legal_index, self.n)
        if self.empty is not None:  # choice 0 is taken for certain, from the first place
            first = torch.arange(place.shape[-1], device=place.device) == 0
            place = torch.where(self.empty.unsqueeze(-1) & first, 0, place)
        wide = self.logits.new_full((*self.batch_shape, self.n + 1), -torch.inf)
        return wide.scatter(-1, place, self.logits)[..., : self.n]


def check_list(legal_index: Any, n: Any, names: Names) -> None:
    """Refuse what lists no choices of ``n``.

    Example:
        >>> check_list(torch.tensor([[0, 2, -1]]), 3, Names())
    """
    kind = legal_index.dtype if isinstance(legal_index, Tensor) else type(legal_index).__name__
    if not isinstance(kind, torch.dtype) or kind.is_floating_point or kind is torch.bool:
        raise TypeError(
            f"{show(names.mask)}: expected a tensor of integers, the legal choices, got {kind};"
            " legal_index(mask, max_legal) makes one from a mask"
        )
    if not (type(n) is int and n >= 1):
        check_count("n", n)


def legal_index(mask: Tensor, max_legal: int) -> Tensor:
    """Return the legal choices of a dense mask, padded with -1: ``[*B, n]`` -> ``[*B, max_legal]``.

    Raises:
        ValueError: for a row with more than ``max_legal`` legal choices.

    Example:
        >>> legal_index(torch.tensor([[True, False, True, False]]), 3)
        tensor([[ 0,  2, -1]])
    """
    most = int(mask.sum(-1).max()) if mask.numel() else 0
    if most > max_legal:
        raise ValueError(f"mask: a row allows {most} choices, more than max_legal={max_legal}")
    rows = mask.reshape(-1, mask.shape[-1])
    out = torch.full((rows.shape[0], max_legal), -1, device=mask.device)
    row, choice = rows.bool().nonzero(as_tuple=True)
    place = torch.arange(len(row), device=mask.device) - torch.searchsorted(row, row)
    out[row, place] = choice
    return out.view(*mask.shape[:-1], max_legal)


@register_kl(SparseCategorical, SparseCategorical)
@register_kl(SparseCategorical, MaskedCategorical)
def _kl_sparse(p: SparseCategorical, q: SparseCategorical | MaskedCategorical) -> Tensor:
    check_same_choices(p.n, q.n if isinstance(q, SparseCategorical) else q.num_events)
    if isinstance(q, SparseCategorical) and p.legal_index is q.legal_index:
        return torch.distributions.kl_divergence(p.base, q.base)
    # q's log-prob of every choice that p lists, wherever q has it
    listed = p.legal_index.movedim(-1, 0).clamp_min(0)
    other = q.log_prob(listed).movedim(0, -1)
    return kl_of_log_probs(p.logits, other)


@register_kl(MaskedCategorical, SparseCategorical)
def _kl_to_sparse(p: MaskedCategorical, q: SparseCategorical) -> Tensor:
    return kl_of_log_probs(p.logits, q.dense())
