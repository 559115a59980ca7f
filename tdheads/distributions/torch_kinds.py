"""KL between distributions of tdheads and those of torch over the same values."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    OneHotCategorical,
    kl_divergence,
    register_kl,
)

from tdheads.distributions.masked_bernoulli import MaskedBernoulli
from tdheads.distributions.masked_categorical import MaskedCategorical
from tdheads.distributions.masked_one_hot import MaskedOneHotCategorical
from tdheads.distributions.sparse_categorical import SparseCategorical


def as_tdheads(dist: Any) -> Any:
    """Return torch's distribution as tdheads' of the same kind, any other as it is.

    Example:
        >>> import torch
        >>> as_tdheads(Categorical(torch.tensor([0.0, 1.0]))).logits
        tensor([-inf, 0.])
    """
    if isinstance(dist, Categorical):
        return MaskedCategorical(**_scores(dist), validate_args=False)
    if isinstance(dist, OneHotCategorical):
        return MaskedOneHotCategorical(**_scores(dist._categorical), validate_args=False)
    if isinstance(dist, Independent):
        if not isinstance(dist.base_dist, Bernoulli) or dist.reinterpreted_batch_ndims != 1:
            raise NotImplementedError(f"KL of bits: expected Independent(Bernoulli, 1), got {dist}")
        return MaskedBernoulli(**_scores(dist.base_dist), validate_args=False)
    return dist


def _scores(dist: Categorical | Bernoulli) -> dict[str, Any]:
    # torch derives one from the other on demand, and rounds: take what was given
    held = vars(dist)
    name = "logits" if held.get("logits") is dist._param or "probs" not in held else "probs"
    return {name: held[name]}


def _kl(p: Any, q: Any) -> Tensor:
    return kl_divergence(as_tdheads(p), as_tdheads(q))


for ours, torchs in (
    (MaskedCategorical, Categorical),
    (SparseCategorical, Categorical),
    (MaskedOneHotCategorical, OneHotCategorical),
    (MaskedBernoulli, Independent),
):
    register_kl(ours, torchs)(_kl)
    register_kl(torchs, ours)(_kl)
