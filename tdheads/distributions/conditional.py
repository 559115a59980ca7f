"""One leaf given the leaves before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution

from tdheads.keys import NestedKey

Actions = Mapping[NestedKey, Tensor]


class Conditional(Protocol):
    """One leaf given its parents; what a head provides."""

    @property
    def when(self) -> Mapping[NestedKey, tuple[int, ...]]:
        """Parent -> choices of it for which this leaf is relevant."""

    @property
    def reads(self) -> tuple[NestedKey, ...]:
        """Parents whose action changes this leaf's distribution."""

    @property
    def exact(self) -> bool:
        """Whether entropy and KL may be taken by enumerating the parents."""

    def build(
        self, actions: Actions, relevant: Tensor | None = None, lenient: bool = False
    ) -> Distribution:
        """Build the distribution; batch dims are those of the actions.

        Rows that are not relevant have nothing to check. ``lenient``: neither has any row.
        """

    def expand(self, lead: torch.Size) -> Conditional:
        """Return the same with the batch dims ``lead`` in front."""

    def index(self, action: Tensor) -> Tensor:
        """Return the choice that an action of this leaf is, ``[*B]``."""

    def write(self, action: Tensor) -> Tensor:
        """Return the action as it is written."""

    @property
    def has_zero(self) -> bool:
        """Whether 0, as an irrelevant leaf is written, is among all actions."""

    def support(self) -> Tensor | None:
        """Return all actions as they are written, ``[n, *event]``; ``None`` if infinitely many."""
