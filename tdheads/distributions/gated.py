"""A leaf that counts in some rows only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, register_kl

from tdheads.distributions.draw import deterministic
from tdheads.distributions.movable import Movable


class GatedLeaf(Movable, Distribution):
    r"""A distribution in the rows where it is relevant, and nothing elsewhere.

    .. math:: \log p(a) = r \log p_{base}(a), \quad H = r H_{base}, \quad r \in \{0, 1\}

    In an irrelevant row the action is 0, whatever the support of the base; its log-prob, entropy,
    KL and gradient are 0.

    Args:
        base: batch shape ``[*B]``, or one that expands to it.
        relevant: bool, ``[*B]``.

    Example:
        >>> base = torch.distributions.Categorical(torch.ones(2, 4))
        >>> dist = GatedLeaf(base, torch.tensor([True, False]))
        >>> dist.entropy()
        tensor([1.3863, 0.0000])
    """

    arg_constraints: dict[str, Any] = {}
    closed = True

    def __init__(self, base: Distribution, relevant: Tensor) -> None:
        if base.batch_shape != relevant.shape:
            base = base.expand(relevant.shape)
        self.base, self.relevant = base, relevant
        super().__init__(relevant.shape, base.event_shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> GatedLeaf:
        """Return a view of the distribution with a larger batch shape."""
        return type(self)(self.base.expand(batch_shape), self.relevant.expand(batch_shape))

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]  # torch has a class attribute here
        """Whether the base has a reparametrised sample."""
        return self.base.has_rsample

    @property
    def validates(self) -> bool:
        """Whether the base looks at values."""
        return getattr(self.base, "validates", True)

    @property
    def empty(self) -> Tensor | None:
        """Rows with nothing to choose: irrelevant, or without a legal choice."""
        rows = getattr(self.base, "empty", None)
        return ~self.relevant if rows is None else rows | ~self.relevant

    @property
    def support(self) -> Any:
        """Support of the base; an irrelevant row holds 0."""
        return self.base.support

    @property
    def mode(self) -> Tensor:
        """Mode of the base, 0 where irrelevant."""
        return self.only_relevant(self.base.mode)

    @property
    def mean(self) -> Tensor:
        """Mean of the base, 0 where irrelevant."""
        return self.only_relevant(self.base.mean)

    @property
    def deterministic_sample(self) -> Tensor:
        """Deterministic action of the base, 0 where irrelevant."""
        return self.only_relevant(deterministic(self.base))

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw from the base, 0 where irrelevant."""
        return self.only_relevant(self.base.sample(torch.Size(sample_shape)))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw from the base with its gradient, 0 where irrelevant."""
        return self.only_relevant(self.base.rsample(torch.Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-prob under the base, 0 where irrelevant, ``[*S, *B]``."""
        # 0 may be outside of the base's support: score something legal there, and drop it
        legal = deterministic(self.base).detach().to(value.dtype)
        rows = self._event(self.relevant)
        log_prob = self.base.log_prob(torch.where(rows, value, legal))
        return torch.where(self.relevant, log_prob, 0)

    def entropy(self) -> Tensor:
        """Entropy of the base, 0 where irrelevant, ``[*B]``."""
        return torch.where(self.relevant, self.base.entropy(), 0)

    def _event(self, rows: Tensor) -> Tensor:
        return rows.reshape((*rows.shape, *[1] * len(self.event_shape)))

    def only_relevant(self, action: Tensor) -> Tensor:
        """Return the action, 0 where irrelevant."""
        return torch.where(self._event(self.relevant), action, 0)


@register_kl(GatedLeaf, GatedLeaf)
def _kl_gated(p: GatedLeaf, q: GatedLeaf) -> Tensor:
    return torch.where(p.relevant, torch.distributions.kl_divergence(p.base, q.base), 0)
