"""Categorical distribution over a short list of legal choices out of very many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from tdheads.checks import rows_where, shape_error, show
from tdheads.distributions.masked_categorical import MaskedCategorical, check_range
from tdheads.distributions.movable import Movable
from tdheads.keys import Names


class SparseCategorical(Movable, Distribution):
    r"""Categorical over the choices in ``legal_index``, out of ``n``.

    .. math:: p(a) = \frac{e^{z_j}}{\sum_k e^{z_k}} \;\text{where}\; legal\_index_j = a

    Equal in every result to a :class:`MaskedCategorical` of width ``n`` whose mask allows the
    listed choices; what is computed and kept has the width ``M`` of the list.

    Args:
        logits: of the listed choices, shape ``[*B, M]``.
        legal_index: the legal choices, each once, -1 as padding, shape ``[*B, M]``.
        n: number of choices in all.
        on_empty, names, validate_args: as in :class:`MaskedCategorical`.

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

    arg_constraints: dict[str, constraints.Constraint] = {}
    closed = True

    def __init__(
        self,
        logits: Tensor,
        legal_index: Tensor,
        n: int,
        *,
        on_empty: str = "error",
        names: Names = Names(),
        validate_args: bool | None = None,
    ) -> None:
        if legal_index.shape != logits.shape:
            raise shape_error(names.mask, logits.shape, legal_index, "one entry per logit")
        index = legal_index.long()
        self._set(
            MaskedCategorical(
                logits, index >= 0, on_empty=on_empty, names=names, validate_args=validate_args
            ),
            index,
            int(n),
        )
        if self.validates:
            self._check_index()

    def _set(self, places: MaskedCategorical, index: Tensor, n: int) -> None:
        self._places, self.legal_index, self.n = places, index, n
        super().__init__(places.batch_shape, validate_args=False)

    def _check_index(self) -> None:
        key, index = self._places.names.mask, self.legal_index
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
        new = type(self).__new__(type(self)) if _instance is None else _instance
        places = self._places.expand(batch_shape)
        new._set(places, self.legal_index.expand(places.logits.shape), self.n)
        return new

    @property
    def validates(self) -> bool:
        """Whether values are looked at (a host synchronisation)."""
        return self._places.validates

    @property
    def empty(self) -> Tensor | None:
        """Rows without a legal choice, ``[*B]``; ``None`` if that is an error."""
        return self._places.empty

    @property
    def logits(self) -> Tensor:
        """Log-probabilities of the listed choices, ``[*B, M]``, ``-inf`` for padding."""
        return self._places.logits

    @property
    def probs(self) -> Tensor:
        """Probabilities of the listed choices, ``[*B, M]``, 0 for padding."""
        return self._places.probs

    @property
    def support(self) -> constraints.Constraint:
        """The integers 0 to n - 1."""
        return constraints.integer_interval(0, self.n - 1)

    @property
    def mode(self) -> Tensor:
        """Most probable legal choice, ``[*B]``."""
        return self._choice(self._places.mode)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode."""
        return self.mode

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw choices, ``[*sample_shape, *B]`` int64."""
        return self._choice(self._places.sample(sample_shape))

    def _choice(self, place: Tensor) -> Tensor:
        index = self.legal_index.expand(*place.shape, -1)
        # a row with nothing to choose lists -1 and takes choice 0
        return index.gather(-1, place.unsqueeze(-1)).squeeze(-1).clamp_min(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of ``value`` (``[*S, *B]``); a choice that is not listed: ``-inf``."""
        if self.validates:
            check_range(value, self.n, self._places.names)
        here = self.legal_index == value.long().unsqueeze(-1)
        if self.empty is not None:  # there choice 0 is taken for certain, from the first place
            first = torch.arange(here.shape[-1], device=here.device) == 0
            here = torch.where(self.empty.unsqueeze(-1), first & (value == 0).unsqueeze(-1), here)
        score = self._places.log_prob(here.to(torch.int8).argmax(-1))
        return score.masked_fill(~here.any(-1), -torch.inf)

    def entropy(self) -> Tensor:
        """Entropy over the legal choices in nats, ``[*B]``."""
        return self._places.entropy()


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
def _kl_sparse(p: SparseCategorical, q: SparseCategorical) -> Tensor:
    if p.legal_index is q.legal_index:
        return torch.distributions.kl_divergence(p._places, q._places)
    # q's log-prob of every choice that p lists, wherever q lists it
    listed = p.legal_index.movedim(-1, 0).clamp_min(0)
    other = q.log_prob(listed).movedim(0, -1)
    legal = p.logits != -torch.inf
    gap = torch.where(legal, p.logits - other.masked_fill(other == -torch.inf, 0), 0)
    terms = p.logits.exp() * gap
    return terms.masked_fill(legal & (other == -torch.inf), torch.inf).sum(-1)
