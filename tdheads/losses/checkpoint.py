"""Loading the state of a loss into one that was built anew."""

from __future__ import annotations

from typing import Any

from tdheads.losses.coefficients import OFF, CoefficientLossModule


class SavedLossModule(CoefficientLossModule):
    """A loss that loads what another one, of the same arguments, has become in training."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._switch_coefficients(state_dict, prefix)
        self._build_estimator(state_dict, f"{prefix}_value_estimator.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _switch_coefficients(self, state_dict: Any, prefix: str) -> None:
        """Turn on or off what had been turned on or off by assignment."""
        for name in OFF:
            saved = state_dict.get(prefix + name)
            if (saved is None) != (getattr(self, name) is None):
                setattr(self, name, None if saved is None else saved.item())

    def _build_estimator(self, state_dict: Any, prefix: str) -> None:
        """Build the default estimator if the loss had built it for its first advantage."""
        saved = any(key.startswith(prefix) for key in state_dict)
        if saved and self._value_estimator is None:
            self._default_value_estimator()
        elif not saved and self._value_estimator is not None:  # saved before: it stays as it is
            self._value_estimator.state_dict(destination=state_dict, prefix=prefix)
