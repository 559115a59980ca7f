"""What heads of discrete choices have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from tdheads.arguments import as_count, check_class
from tdheads.checks import check_options, shape_error, show
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
        start: what choice 0 stands for, a number, one per dimension, or one per agent (and
            dimension); actions are written from there.
        allowed: choices that exist, for agents with fewer of them: a constant bool mask
            ``[*agents, ...]``, of the first of ``mask_shapes`` after the agents.
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
        start: int | Sequence[int] | Tensor = 0,
        allowed: Tensor | None = None,
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
        first = _as_start(self.action_key, start)
        if not self.takes_start and (first.any() or allowed is not None):
            raise ValueError(
                f"{show(self.action_key)}: a {type(self).__name__} takes no start and no allowed"
            )
        check_class("allowed", allowed, Tensor, "a bool tensor")
        self.start = Constants(first=first) if first.any() else None
        self.allowed = None if allowed is None else Constants(choices=allowed)

    def _last(self, n: int) -> int:
        """Return the largest number that ``n`` choices reach, at most."""
        # agents that start elsewhere need not have all of them: what their spec holds is right
        return n - 1 if self.start is None else 0

    def _check_allowed(self) -> None:
        """Refuse choices that are no mask; the shape of one is known when a head is complete."""
        if self.allowed is None:
            return
        given, shape = self.allowed.choices, self.mask_shapes[0]
        if given.dtype is not torch.bool or given.shape[given.ndim - len(shape) :] != shape:
            raise ValueError(
                f"allowed: expected a bool tensor [*agents, {str(list(shape))[1:-1]}], got"
                f" {given.dtype} of shape {list(given.shape)}; True where a choice exists"
            )

    def _from_start(self, dist: Distribution) -> Distribution:
        """Shift the choices to where they start."""
        if self.start is None:
            return dist
        first = self.start.first
        self._check_agents(dist.batch_shape, first.shape[: first.ndim - len(self.event_shape)])
        return ShiftedLeaf(dist, first)

    def _existing(self, mask: Tensor | None, batch: torch.Size) -> Tensor | None:
        """Take from the mask the choices that an agent does not have."""
        if self.allowed is None:
            return mask
        choices, shape = self.allowed.choices, self.mask_shapes[0]
        self._check_agents(batch, choices.shape[: choices.ndim - len(shape)])
        if mask is None:
            return choices.expand(batch + shape)
        if mask.shape != batch + shape:  # an error of the distribution's
            return mask
        return mask & choices if mask.dtype is torch.bool else mask * choices

    def _check_agents(self, batch: torch.Size, agents: torch.Size) -> None:
        # another batch would be broadcast, one agent's choices to all
        if batch[len(batch) - len(agents) :] != agents:
            key, width = self.param_keys["logits"], self.param_shapes["logits"]
            expected = f"[..., {', '.join(map(str, agents + width))}]"
            todo = "its choices differ between agents, which are the last batch dims"
            raise shape_error(key, expected, batch + width, todo)

    @property
    def same_start(self) -> bool:
        """Whether choices start at the same numbers for all agents."""
        return self.start is None or self.start.first.ndim <= len(self.event_shape)

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


def _as_start(key: NestedKey, start: Any) -> Tensor:
    listed = start.tolist() if hasattr(start, "tolist") else start
    first = None
    if not isinstance(listed, str) and listed is not None:
        first = torch.as_tensor(start, device="cpu")
    if first is None or first.is_floating_point() or first.is_complex():
        raise TypeError(f"{show(key)}: expected integers to start from, got start={listed!r}")
    return first


def check_count(action_key: NestedKey, n: Any, what: str, name: str = "n") -> int:
    """Return ``n`` if it is a count of at least 1.

    Example:
        >>> check_count("action", 3, "choices")
        3
    """
    count = as_count(n)
    if count is None:
        raise ValueError(
            f"{show(action_key)}: expected the number of {what} {name} >= 1, got {name}={n!r}; give"
            " an integer"
        )
    return count


def existing_choices(nvec: Tensor, most: Tensor, joint: bool = False) -> Tensor:
    """Return the choices that each agent has, in the first shape that a mask may have.

    Shapes: ``nvec`` ``[*agents]`` or ``[*agents, k]``, ``most`` ``[]`` or ``[k]``.

    Example:
        >>> existing_choices(torch.tensor([[1, 2], [2, 1]]), torch.tensor([2, 2])).int()
        tensor([[1, 0, 1, 1],
                [1, 1, 1, 0]], dtype=torch.int32)
    """
    dims = nvec.unbind(-1) if most.ndim else [nvec]
    rows = [
        torch.arange(int(n)) < own.unsqueeze(-1) for n, own in zip(most.view(-1), dims, strict=True)
    ]
    if not joint:
        return torch.cat(rows, -1)
    table = rows[0]
    for row in rows[1:]:
        table = table.unsqueeze(-1) & row.view(
            *dims[0].shape, *[1] * (table.ndim - dims[0].ndim), -1
        )
    return table


def check_holds(key: NestedKey, dtype: torch.dtype | None, most: int) -> None:
    """Refuse a dtype that cannot hold the largest choice, which would be another one.

    Example:
        >>> check_holds("action", torch.int8, 127)
    """
    if dtype is None:
        return
    if dtype.is_floating_point:
        largest = 2 / torch.finfo(dtype).eps
    else:
        largest = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    if most > largest:
        raise ValueError(
            f"{show(key)}: expected a dtype that holds the choices up to {most}, got dtype={dtype};"
            " give a wider one"
        )
