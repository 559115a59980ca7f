"""Head for one choice out of n."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdheads.checks import check_options
from tdheads.distributions import MaskedCategorical
from tdheads.heads.base import LeafHead
from tdheads.keys import NestedKey


class CategoricalHead(LeafHead):
    r"""One choice out of ``n``, written as an integer of shape ``[*B]``.

    .. math:: p_i = m_i e^{z_i} / \sum_j m_j e^{z_j}

    Reads ``K_logits`` ``[*B, n]`` and, if it has a mask, ``K_mask`` ``[*B, n]``; writes ``K`` and
    ``K_log_prob`` ``[*B]``.

    Args:
        action_key: the leaf key ``K``.
        n: number of choices.
        logits: key of the logits, if it is not ``K_logits``.
        mask: ``None`` for none, ``True`` for ``K_mask``, or a key; bool or 0/1 numbers.
        on_empty: what a row without a legal choice is, ``"error"`` or ``"neutral"``.
        dtype: integer dtype of the written action.
        leaf: ``validate``, ``return_log_prob``, ``default_interaction_type`` of every head.

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
        *,
        logits: NestedKey | None = None,
        mask: NestedKey | bool | None = None,
        on_empty: str = "error",
        dtype: torch.dtype = torch.int64,
        **leaf: Any,
    ) -> None:
        if n is None or n < 1:
            raise ValueError(f"{action_key!r}: expected the number of choices n >= 1, got n={n}")
        check_options("on_empty", on_empty, ("error", "neutral"))
        super().__init__(
            action_key,
            {"logits": [n]},
            param_keys={"logits": logits},
            mask=mask,
            dtype=dtype,
            **leaf,
        )
        self.n = n
        self.on_empty = on_empty

    @property
    def mask_shapes(self) -> tuple[torch.Size, ...]:
        """One entry per choice."""
        return (torch.Size([self.n]),)

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> MaskedCategorical:
        """Build the masked categorical."""
        return MaskedCategorical(
            logits, mask, on_empty=self.on_empty, names=self.names, validate_args=self.validate
        )
