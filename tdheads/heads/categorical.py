"""Head for one choice out of n."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.distributions import MaskedCategorical
from tdheads.heads.choice import ChoiceHead, check_count, check_holds
from tdheads.heads.embedding import ChoiceEmbedding
from tdheads.keys import NestedKey


class CategoricalHead(ChoiceHead):
    r"""One choice out of ``n``, written as an integer of shape ``[*B]``.

    .. math:: p_i = m_i e^{z_i} / \sum_j m_j e^{z_j}

    Reads ``K_logits`` ``[*B, n]`` and, if it has a mask, ``K_mask`` ``[*B, n]``; writes ``K`` and
    ``K_log_prob`` ``[*B]``.

    Args:
        action_key: the leaf key ``K``.
        n: number of choices.
        choice: ``logits``, ``mask``, ``on_empty``, ``dtype``, ``validate``, ... as in
            :class:`~tdheads.heads.choice.ChoiceHead`.

    Raises:
        KeyError: for missing logits or a missing mask.
        ValueError: for a wrong shape, ``nan`` logits, a row without a legal choice.

    Source: see :class:`~tdheads.distributions.MaskedCategorical`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = CategoricalHead("action", n=3, mask=True)
        >>> td = TensorDict({"action_logits": torch.tensor([[0.0, 9.0, 1.0]])}, [1])
        >>> td["action_mask"] = torch.tensor([[True, False, True]])
        >>> head(td)["action"]
        tensor([2])
    """

    def __init__(
        self,
        action_key: NestedKey = "action",
        n: int | None = None,
        **choice: Any,
    ) -> None:
        count = check_count(action_key, n, "choices")
        super().__init__(action_key, count, **choice)
        self.n = count
        self._check_allowed()
        check_holds(self.action_key, self.dtype, self._last(count))

    @property
    def num_choices(self) -> int | None:
        """The number of choices ``n``, if they are the same numbers for all agents."""
        return self.n if self.same_start else None

    def all_actions(self) -> Tensor | None:
        """Return the n numbers, if they are the same for all agents."""
        if not self.same_start:
            return None
        first = 0 if self.start is None else self.start.first
        return (torch.arange(self.n) + first).to(self.dtype)

    def embedding(self, width: int) -> nn.Module:
        """Return one vector per choice."""
        return ChoiceEmbedding(self.n, width, self.start)

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> Distribution:
        """Build the masked categorical."""
        if self.allowed is not None:
            mask = self._existing(mask, logits.shape[:-1])
        dist = MaskedCategorical(logits, mask, **self.options)
        return dist if self.start is None else self._from_start(dist)
