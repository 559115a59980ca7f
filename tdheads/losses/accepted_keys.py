"""The keys of a loss."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torchrl.objectives import LossModule

from tdheads.arguments import unknown_name
from tdheads.keys import NestedKey, as_key

ONE_KEY = ("advantage", "value_target", "value", "reward", "done", "terminated")


class WrappedOnce(type(LossModule)):  # type: ignore[misc]  # the class of TorchRL's losses
    """Leaves a ``forward`` that a class inherits as it is, which TorchRL would wrap once more."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        owner = next(base for base in cls.__mro__[1:] if "forward" in vars(base))
        if "forward" not in namespace and isinstance(owner, type(LossModule)):
            del cls.forward


class KeyedLossModule(LossModule, metaclass=WrappedOnce):
    """A loss with several action leaves, one reward and one done."""

    @dataclass
    class _AcceptedKeys:
        """Keys that ``set_keys`` takes; action and log-prob take a list, all others one key.

        ``alive`` says which agents act: ``[*B, agents]``, or ``[*B]``; ``None`` if all do.
        """

        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"
        sample_log_prob: NestedKey | list[NestedKey] = "action_log_prob"
        action: NestedKey | list[NestedKey] = "action"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"
        alive: NestedKey | None = None

    default_keys = _AcceptedKeys

    @classmethod
    def names(cls) -> list[str]:
        """Return the names that ``set_keys`` takes."""
        return [field.name for field in fields(cls._AcceptedKeys)]

    @property
    def action_keys(self) -> list[NestedKey]:
        """The leaves of the action."""
        keys = self.tensor_keys.action
        return keys.copy() if isinstance(keys, list) else [keys]

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """Where the log-probs of the collected actions are stored."""
        keys = self.tensor_keys.sample_log_prob
        return keys.copy() if isinstance(keys, list) else [keys]

    def set_keys(self, **kwargs: Any) -> None:
        """Set the keys of the tensordict, ``None`` for the default; see TorchRL's ``LossModule``.

        Raises:
            ValueError: for an unknown name, or a list where a loss has one key.
        """
        canonical: dict[str, Any] = {}
        for name, key in kwargs.items():
            if name not in self.names():
                raise ValueError(unknown_name("set_keys: unknown name", name, self.names()))
            if name not in ("action", "sample_log_prob") and isinstance(key, list):
                raise ValueError(
                    f"{name}: expected one key, got {key}; a loss has one reward and one done. Use"
                    " one loss per agent group"
                )
            keys = [] if key is None else as_list(key, name)
            if key == [] or len(set(keys)) != len(keys):
                raise ValueError(
                    f"{name}: expected at least one key, each once, got {key}; name the leaves of"
                    " the actor"
                )
            canonical[name] = keys if isinstance(key, list) else keys[0] if keys else None
        defaults = self.default_keys()
        for name, key in canonical.items():
            setattr(self.tensor_keys, name, getattr(defaults, name) if key is None else key)
        self._forward_value_estimator_keys()

    def _forward_value_estimator_keys(self, **_: Any) -> None:
        if self._value_estimator is not None:
            self._value_estimator.set_keys(**self._estimator_keys())

    def _estimator_keys(self) -> dict[str, Any]:
        return {name: getattr(self.tensor_keys, name) for name in (*ONE_KEY, "sample_log_prob")}


def as_list(keys: NestedKey | list[NestedKey], name: str = "key") -> list[NestedKey]:
    """Return one key or several as a list of keys.

    Example:
        >>> as_list("action")
        ['action']
    """
    listed = keys if isinstance(keys, list) else [keys]
    return [as_key(key, name) for key in listed]
