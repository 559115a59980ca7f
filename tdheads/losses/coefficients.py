"""The coefficients of a loss: checked, saved, and set during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tdheads.checks import shape_error
from tdheads.keys import NestedKey
from tdheads.losses.accepted_keys import as_list
from tdheads.losses.entropy import updated
from tdheads.losses.networks import NetworkLossModule
from tdheads.losses.settings import SETTINGS, Check, check_known, check_setting

#: coefficients of every loss that ``None`` turns off
OFF = ("critic_coeff", "clip_value", "max_importance_ratio")


class CoefficientLossModule(NetworkLossModule):
    """A loss whose coefficients are buffers, which a schedule sets by assignment."""

    #: name -> what it may be set to
    settings: dict[str, Check] = SETTINGS
    _schedulable_buffers = frozenset({"entropy_coeff", *OFF})
    _all_schedulable_buffers = _schedulable_buffers

    entropy_coeff: Tensor
    _coeff_leaves: list[NestedKey]

    def __init_subclass__(cls, **options: Any) -> None:
        """Gather the coefficients of all bases."""
        super().__init_subclass__(**options)
        named = (vars(base).get("_schedulable_buffers", ()) for base in cls.__mro__)
        cls._all_schedulable_buffers = frozenset().union(*named)

    def set_keys(self, **kwargs: Any) -> None:
        """Set the keys of the tensordict; leaves with coefficients of their own stay these leaves.

        Raises:
            ValueError: for an unknown name, a list where a loss has one key, and other leaves than
                there are entropy coefficients for.
        """
        coeff = self._buffers.get("entropy_coeff")
        if kwargs.get("action") is not None and coeff is not None and coeff.ndim:
            leaves = as_list(kwargs["action"])
            if set(leaves) != set(self._coeff_leaves):
                raise ValueError(
                    f"action: there are entropy coefficients for {self._coeff_leaves}, got {leaves}"
                )
        super().set_keys(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Also take a mapping of leaves for ``entropy_coeff``, of all of them or some.

        Raises:
            TypeError, ValueError: for what ``name`` cannot be.
            AttributeError: for a number under a name that is a misspelt coefficient.
        """
        if name == "entropy_coeff" and isinstance(value, Mapping):
            self.entropy_coeff.copy_(updated(self.entropy_coeff, value, self._coeff_leaves))
            return
        if name in self.settings:
            self._check_assigned(name, value)
            if name in self._all_schedulable_buffers and self._set_coefficient(name, value):
                return
        elif self.__dict__.get("_built") and not hasattr(self, name):
            check_known(type(self), self.settings, name, value)
        super().__setattr__(name, value)

    def _set_coefficient(self, name: str, value: Any) -> bool:
        """Write a number into its buffer, or make the buffer of a coefficient that was off."""
        if getattr(self, name, value) is None and value is not None:
            self.__dict__.pop(name, None)
            self._buffers.pop(name, None)
            self.register_coeff_buffer(name, value, device=self.entropy_coeff.device)
            return True
        buffer = self._buffers.get(name)
        if buffer is None or not isinstance(value, (int, float)):
            return False
        buffer.fill_(value)
        return True

    def _check_assigned(self, name: str, value: Any) -> None:
        buffer = self._buffers.get(name) if vars(self).get("_built") else None
        if isinstance(value, Tensor) and buffer is not None:  # its value is not looked at
            if value.shape != buffer.shape:
                raise shape_error(name, buffer.shape, value, "as this loss was built")
            return
        check_setting(self.settings, name, value)
        if not vars(self).get("_built"):
            return
        if name == "critic_coeff" and value is not None and self.critic_network is None:
            raise ValueError(
                f"critic_coeff: this loss has no critic, got {value!r}; build it with"
                " critic_network"
            )

    def register_coeff_buffer(
        self,
        name: str,
        value: Any,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Register a coefficient after checking it; ``None`` stays ``None``."""
        check_setting(self.settings, name, value)
        if value is None:
            setattr(self, name, None)
            return
        value = value.detach().reshape(()) if isinstance(value, Tensor) else value
        self.register_buffer(name, torch.as_tensor(value, device=device, dtype=dtype))

    def coefficients(self, leaves: Sequence[NestedKey]) -> list[Tensor]:
        """Return the entropy coefficient of each leaf, ``[]`` each."""
        if self.entropy_coeff.ndim == 0:
            return [self.entropy_coeff] * len(leaves)
        known = dict(zip(self._coeff_leaves, self.entropy_coeff.unbind(), strict=True))
        return [known[leaf] for leaf in leaves]
