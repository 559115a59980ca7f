"""What every environment says of itself, and how a missing package is reported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torchrl.envs import EnvBase

Key = str | tuple[str, ...]


class MissingPackageError(Exception):
    """An optional package is not installed; the message says what to install."""


def require(module: str, extra: str) -> Any:
    """Import `module`, or say which extra of tdheads brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f'{module} cannot be imported ({error}); run: pip install "tdheads[{extra}]"'
        raise MissingPackageError(message) from None


@dataclass(frozen=True)
class Task:
    """An environment, where its parts lie in the tensordict, and settings that work for it."""

    make: Callable[[int], EnvBase]
    encode: Callable[..., Tensor]
    """The entries `observation` -> float features `[*B, f]`, the input of the networks."""
    settings: dict[str, Any]
    """Defaults of the options of `train.py` for this environment."""
    observation: tuple[Key, ...] = ("observation",)
    action: Key = "action"
    """The discrete action leaf that `mask` speaks about."""
    mask: Key = "action_mask"
    head: dict[str, Any] = field(default_factory=dict)
    """More keywords for `make_head`."""
    group: str | None = None
    """Where reward, done and value lie: in this agent group, or at the root."""
    board_game: bool = False
    """The return of an episode is 1 for a win, 0 for a draw, -1 for a loss."""

    @property
    def joint(self) -> bool:
        """Whether the mask covers the product of the action's dimensions."""
        return bool(self.head.get("joint", False))

    def key(self, name: str) -> Key:
        """`name` inside the task's group."""
        return (self.group, name) if self.group else name
