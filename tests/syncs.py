"""Counts what makes the host wait for the device, or the shape of a result depend on values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
#: item(), bool(), tolist(); nonzero() and its kin; == of whole tensors
WAITS = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.item,
    aten.equal,
    aten.nonzero,
    aten.nonzero_numpy,
    aten.argwhere,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten.repeat_interleave,
}
#: x[mask] and x[mask] = y
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class CountSyncs(TorchDispatchMode):
    """Counts host synchronisations, by operator, in what runs under it, backward included.

    It sees operators, not devices, so that it finds on a CPU what would wait on a GPU; copies to
    the host have no operator of their own and are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._tolist = mock.patch.object(torch.Tensor, "tolist", self._counted(torch.Tensor.tolist))

    def __enter__(self) -> CountSyncs:
        self._tolist.start()  # runs no operator where the tensor is on the host
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._tolist.stop()

    def _counted(self, method: Any) -> Any:
        def counted(x: torch.Tensor) -> Any:
            self.found[method.__name__] += 1
            return method(x)

        return counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        packet = func.overloadpacket
        if packet in WAITS or (packet in INDEXED and _by_mask(args[1])):
            self.found[packet.__name__] += 1
        return func(*args, **(kwargs or {}))


def _by_mask(indices: Sequence[Any]) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)
