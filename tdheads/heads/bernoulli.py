"""Head for a vector of bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdheads.distributions import MaskedBernoulli
from tdheads.heads.choice import ChoiceHead, check_count
from tdheads.keys import NestedKey


class BernoulliHead(ChoiceHead):
    r"""``n`` independent bits, written as zeros and ones of shape ``[*B, n]``; a masked bit is 0.

    .. math:: \log p(a) = \sum_{i: m_i = 1} a_i \log \sigma(z_i) + (1 - a_i) \log \sigma(-z_i)

    Reads ``K_logits`` ``[*B, n]`` and, if it has a mask, ``K_mask`` ``[*B, n]``: 1 where the bit
    may be 1. Writes ``K`` and ``K_log_prob`` ``[*B]``.

    Args:
        action_key: the leaf key ``K``.
        n: number of bits.
        choice: ``logits``, ``mask``, ``on_empty``, ``dtype``, ``validate``, ... as in
            :class:`~tdheads.heads.choice.ChoiceHead`; a row in which no bit may be 1 is a row with
            nothing to choose.

    Raises:
        KeyError: for missing logits or a missing mask.
        ValueError: for a wrong shape, ``nan`` logits, a row in which no bit may be 1.

    Source: see :class:`~tdheads.distributions.MaskedBernoulli`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = BernoulliHead("action", n=3, mask=True)
        >>> td = TensorDict({"action_logits": torch.full((1, 3), 5.0)}, [1])
        >>> td["action_mask"] = torch.tensor([[True, False, True]])
        >>> head(td)["action"]
        tensor([[1, 0, 1]])
    """

    takes_start = False

    def __init__(
        self, action_key: NestedKey = "action", n: int | None = None, **choice: Any
    ) -> None:
        count = check_count(action_key, n, "bits")
        super().__init__(action_key, count, **choice)
        self.n = count

    @property
    def event_shape(self) -> torch.Size:
        """One entry per bit."""
        return torch.Size([self.n])

    def all_actions(self) -> Tensor:
        """Return every vector of bits, ``[2 ** n, n]``."""
        bits = torch.arange(2**self.n).unsqueeze(-1) >> torch.arange(self.n)
        return (bits % 2).to(self.dtype)

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> MaskedBernoulli:
        """Build the masked bits."""
        return MaskedBernoulli(logits, mask, **self.options)
