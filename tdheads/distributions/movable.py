"""Distributions that can be moved to another device."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

T = TypeVar("T", bound="Movable")


class Movable:
    """Adds ``to(device)`` to a distribution, and ``score_draw``.

    That is ``_score``, the log-prob without a look at the value, of the class whose ``log_prob``
    counts; a class that writes a ``log_prob`` and no ``_score`` means what it wrote.

    Example:
        >>> from tdheads import MaskedCategorical
        >>> MaskedCategorical(torch.zeros(2, 3)).to("cpu").logits.device
        device(type='cpu')
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Let ``score_draw`` go with the ``log_prob`` of the class."""
        super().__init_subclass__(**options)
        if "log_prob" in vars(cls):
            cls.score_draw = vars(cls).get("_score", vars(cls)["log_prob"])  # type: ignore[attr-defined]

    def to(self: T, device: torch.device | str) -> T:
        """Return the distribution with all of its tensors on ``device``; it is a new value."""
        return _moved(self, torch.device(device))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, (Tensor, TensorDictBase)):
        return value.to(device)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, dict):
        return {key: _moved(entry, device) for key, entry in value.items()}
    if isinstance(value, (Distribution, Movable)):
        new = copy.copy(value)
        vars(new).update({name: _moved(entry, device) for name, entry in vars(value).items()})
        return new
    return value
