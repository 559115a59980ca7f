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
    """Adds ``to(device)`` to a distribution.

    Example:
        >>> from tdheads import MaskedCategorical
        >>> MaskedCategorical(torch.zeros(2, 3)).to("cpu").logits.device
        device(type='cpu')
    """

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
