"""Every combination of the actions of some leaves: what the chain rule sums over."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tdheads.distributions.conditional import Actions, Conditional
from tdheads.keys import NestedKey
from tdheads.reduce import add, sum_event

Relevance = dict[NestedKey, Tensor | None]


class Combinations:
    """All combinations of the actions of the leaves ``keys``, parents before children.

    Shapes: each of ``actions`` is ``[combinations, *rows, *event]``, each of ``relevance``
    ``[combinations, *rows]`` or ``None`` for a leaf that is always relevant.
    """

    def __init__(
        self,
        leaves: Mapping[NestedKey, Conditional],
        keys: Sequence[NestedKey],
        rows: torch.Size,
    ) -> None:
        self._leaves = leaves
        self.actions: dict[NestedKey, Tensor] = {}
        # where an action is the 0 of an irrelevant leaf that is none of its choices, [combinations]
        self._added: dict[NestedKey, Tensor] = {}
        self._grid(keys, rows)
        self.relevance: Relevance = {}
        for key in keys:
            self.relevance[key] = relevant(leaves, key, self.actions, self.relevance)

    def _grid(self, keys: Sequence[NestedKey], rows: torch.Size) -> None:
        supports, extra = [], {}
        for key in keys:
            support = self._leaves[key].support()
            assert support is not None  # what is asked for is finite
            if self._leaves[key].when and not self._leaves[key].has_zero:
                extra[key] = len(support)
                support = torch.cat([support, torch.zeros_like(support[:1])])
            supports.append(support)
        places = torch.cartesian_prod(*(torch.arange(len(s)) for s in supports))
        indices = dict(zip(keys, places.view(-1, len(keys)).unbind(-1), strict=True))
        for key, support in zip(keys, supports, strict=True):
            values = support[indices[key].to(support.device)]
            event = values.shape[1:]
            wide = values.view((-1, *[1] * len(rows), *event)).expand(-1, *rows, *event)
            self.actions[key] = wide
        self._added = {key: indices[key] == place for key, place in extra.items()}

    def weight(self) -> Tensor:
        """Return the probability of every combination, ``[combinations, *rows]``."""
        log_probs = []
        for key, action in self.actions.items():
            added = self._added.get(key)
            if added is not None:  # not a choice: another stands in, to be scored as impossible
                added = _with_dims(added.to(action.device), action.ndim)
                action = torch.where(added, action[:1], action)
            leaf = self._leaves[key].build(self.actions, lenient=True)
            log_prob = leaf.log_prob(action)
            rows = self.relevance[key]
            if rows is not None:  # an irrelevant leaf is 0 for certain
                zero = self._is_zero(key, log_prob.ndim)
                if added is not None:
                    log_prob = log_prob.masked_fill(zero, -torch.inf)
                certain = torch.zeros_like(log_prob).masked_fill(~zero, -torch.inf)
                log_prob = torch.where(rows, log_prob, certain)
            log_probs.append(log_prob)
        return add(log_probs).exp()

    def possible(self) -> Tensor:
        """Return where every irrelevant leaf is 0 and every other one is not that 0."""
        found = []
        for key, rows in self.relevance.items():
            if rows is None:
                continue
            zero = self._is_zero(key, rows.ndim).expand(rows.shape)
            choice = ~zero if key in self._added else torch.ones_like(zero)
            found.append(torch.where(rows, choice, zero))
        if not found:
            first = next(iter(self.actions.values()))
            return torch.ones(len(first), dtype=torch.bool, device=first.device)
        return torch.stack(found).all(0)

    def _is_zero(self, key: NestedKey, ndim: int) -> Tensor:
        """Return where an action is what an irrelevant leaf is written as, ``[..., *rows]``."""
        action, added = self.actions[key], self._added.get(key)
        if added is not None:
            return _with_dims(added.to(action.device), ndim)
        return sum_event((action != 0).long(), action.ndim - ndim) == 0


def relevant(
    leaves: Mapping[NestedKey, Conditional], key: NestedKey, actions: Actions, known: Relevance
) -> Tensor | None:
    """Return where a leaf is relevant: each parent is, and took one of the choices."""
    rows: Tensor | None = None
    for parent, choices in leaves[key].when.items():
        index = leaves[parent].index(actions[parent])
        taken = functools.reduce(torch.logical_or, [index == choice for choice in choices])
        for more in (known[parent], rows):
            taken = taken if more is None else taken & more
        rows = taken
    return rows


def _with_dims(first: Tensor, ndim: int) -> Tensor:
    return first.view(-1, *[1] * (ndim - 1))
