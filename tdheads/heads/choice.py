"""What heads of discrete choices have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from tdheads.checks import check_options, show
from tdheads.constants import Constants
from tdheads.distributions.shifted import ShiftedLeaf
from tdheads.heads.leaf import LeafHead
from tdheads.keys import NestedKey


class ChoiceHead(LeafHead):
    """Base of heads that read logits and a mask over choices.

    Args:
        action_key: the leaf key ``K``.
        width: number of logits.
        logits: key of the logits, if it is not ``K_logits``.
        mask: ``None`` for none, ``True`` for ``K_mask``, or a key; bool or 0/1 numbers.
        on_empty: what a row without a legal choice is, ``"error"`` or ``"neutral"``.
        dtype: dtype of the written action.
        start: what choice 0 stands for, a number or one per dimension; actions are written from
            there.
        leaf: ``validate``, ``return_log_prob``, ``default_interaction_type`` of every head.
    """

    takes_start = True

    def __init__(
        self,
        action_key: NestedKey,
        width: int,
        *,
        logits: NestedKey | None = None,
        mask: NestedKey | bool | None = None,
        on_empty: str = "error",
        dtype: torch.dtype = torch.int64,
        start: int | Sequence[int] = 0,
        **leaf: Any,
    ) -> None:
        check_options("on_empty", on_empty, ("error", "neutral"))
        super().__init__(
            action_key,
            {"logits": [width]},
            param_keys={"logits": logits},
            mask=mask,
            dtype=dtype,
            **leaf,
        )
        self.on_empty = on_empty
        first = torch.as_tensor(start, device="cpu")
        if first.any() and not self.takes_start:
            raise ValueError(f"{show(self.action_key)}: a {type(self).__name__} takes no start")
        self.start = Constants(first=first) if first.any() else None

    def _from_start(self, dist: Distribution) -> Distribution:
        """Shift the choices to where they start."""
        return dist if self.start is None else ShiftedLeaf(dist, self.start.first)

    @property
    def has_zero(self) -> bool:
        """Whether choices start at 0."""
        return self.start is None

    def raw_choice(self, action: Tensor) -> Tensor:
        """Return the choice that an action is, if it is one."""
        index = action.long()
        return index if self.start is None else index - self.start.first

    @property
    def mask_shapes(self) -> tuple[torch.Size, ...]:
        """One entry per logit."""
        return (self.param_shapes["logits"],)

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of every masked distribution."""
        return {
            "on_empty": self.on_empty,
            "names": self.names,
            "validate_args": self.validate,
        }


def check_count(action_key: NestedKey, n: int | None, what: str) -> int:
    """Return ``n`` if it is a count of at least 1.

    Example:
        >>> check_count("action", 3, "choices")
        3
    """
    if n is None or n < 1:
        raise ValueError(f"{show(action_key)}: expected the number of {what} n >= 1, got n={n}")
    return int(n)
