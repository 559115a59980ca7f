"""Constant tensors of a module: they follow its device, never its dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Constants(nn.Module):
    """Holds constant tensors under the names they are given.

    ``module.half()`` must not round an action's bounds, and ``to_empty`` must not lose an index:
    the values are kept beside the buffers, which only follow the device.

    Example:
        >>> import torch
        >>> Constants(high=torch.tensor(0.3, dtype=torch.float64)).half().high.dtype
        torch.float64
    """

    def __init__(self, **values: Tensor) -> None:
        super().__init__()
        self._values = values
        for name, value in values.items():
            self.register_buffer(name, value, persistent=False)

    def __getattr__(self, name: str) -> Tensor:
        return super().__getattr__(name)  # type: ignore[return-value]  # all of them are tensors

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Constants:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types here
        for name, value in self._values.items():
            device = getattr(self, name).device
            # the one backend without float64
            value = value.float() if device.type == "mps" and value.is_floating_point() else value
            self._buffers[name] = value.to(device)
        return self
