"""A loss and its first batch, with what several checks need of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdheads.distributions import ActionDistribution
from tdheads.keys import NestedKey
from tdheads.losses import PolicyLoss
from tdheads.losses.adapter import as_action_distribution
from tdheads.losses.advantage import row_shape, with_advantage
from tdheads.losses.policy import score_leaf
from tdheads.losses.rows import Valid

ERROR, WARNING, NOTE = "error", "warning", "note"


#: what a set-up that is wrong may raise, of this library or of the user's networks
ERRORS = (KeyError, TypeError, ValueError, RuntimeError)


class Symptom(NamedTuple):
    """What a check found."""

    level: str
    key: NestedKey | None
    found: str
    todo: str


Symptoms = Iterator[Symptom]


class Batch:
    """A loss and a batch, with what several checks need of them."""

    def __init__(self, loss: PolicyLoss, td: TensorDictBase) -> None:
        self.loss, self.td = loss, td
        self._dist: ActionDistribution | None = None
        self._clean: TensorDictBase | None = None

    @property
    def actor(self) -> Any:
        """The policy network."""
        return self.loss.actor_network

    @property
    def clean(self) -> TensorDictBase:
        """The batch with its advantage, and harmless content in the rows that do not count."""
        if self._clean is None:
            with torch.no_grad():
                td = with_advantage(self.loss, self.td)
            judged = self.loss._judged(self.loss._valid(self.td), self.valid)
            self._clean = self.loss._without_garbage(td, self.valid, judged)
        return self._clean

    @property
    def dist(self) -> ActionDistribution:
        """The current policy at the batch."""
        if self._dist is None:
            self._dist = self.policy(self.clean)
        return self._dist

    def policy(self, td: TensorDictBase) -> ActionDistribution:
        """Return the current policy at any batch."""
        with torch.no_grad(), self.loss.over_time("actor_network") as actor:
            dist = actor.get_dist(td.copy())
        return as_action_distribution(dist, self.loss.action_keys, row_shape(self.loss, self.clean))

    @property
    def valid(self) -> Valid | None:
        """The rows that count for the policy."""
        return self.loss._acting(self.td, self.loss._valid(self.td))

    def rows(self, shape: torch.Size) -> Tensor:
        """Return where policy rows count, ``[*B]``."""
        valid = self.valid
        if valid is None:
            return torch.ones(shape, dtype=torch.bool, device=self.td.device)
        return valid.for_rows(shape)

    def score(self, dist: ActionDistribution, key: NestedKey) -> Tensor:
        """Log-prob of the stored actions of a leaf."""
        return score_leaf(dist, key, self.clean, self.valid)


def told(error: Exception) -> Symptom:
    """Turn an error of this library, ``found; todo``, into a symptom."""
    message = error.args[0] if error.args else repr(error)
    found, _, todo = str(message).strip().rpartition("; ")
    return Symptom(ERROR, None, found or todo, todo if found else "see the error of loss(td)")
