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


def as_it_is(observation: Tensor) -> Tensor:
    """Encode an observation that is a vector of floats already (worker processes can pickle it)."""
    return observation


@dataclass(frozen=True)
class Task:
    """An environment, where its parts lie in the tensordict, and settings that work for it."""

    make: Callable[[int], EnvBase]
    encode: Callable[..., Tensor]
    """The entries `observation` -> float features `[*B, f]`, the input of the networks."""
    package: str | None
    """The distribution that brings the environment; `None` for one of this folder."""
    settings: dict[str, Any]
    """Defaults of the options of `train.py` for this environment."""
    groups: tuple[str, ...] = ()
    """Agent groups, each with an actor, a critic and a loss; none: all lies at the root.

    The keys below, and reward and done, are those inside of a group.
    """
    observation: tuple[Key, ...] = ("observation",)
    action: Key = "action"
    """The discrete action leaf that `mask` speaks about."""
    mask: Key | None = "action_mask"
    """`None` for an environment that has no mask."""
    alive: str | None = None
    """The entry of a group that says which of its agents act."""
    head: dict[str, Any] = field(default_factory=dict)
    """More keywords for `make_head`."""
    drawn: bool = False
    """Evaluate with actions that are drawn, as in training, where repeating the likeliest fails."""
    board_game: bool = False
    """The return of an episode is 1 for a win, 0 for a draw, -1 for a loss."""

    @property
    def joint(self) -> bool:
        """Whether the mask covers the product of the action's dimensions."""
        return bool(self.head.get("joint", False))

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The groups, or the root alone."""
        return self.groups or (None,)

    @staticmethod
    def key(name: Key, group: str | None) -> Key:
        """`name` inside a group, or at the root."""
        path = (name,) if isinstance(name, str) else name
        return (group, *path) if group else name
