"""Entries of a tensordict, without the conversions that tensordict tries at each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdheads.keys import NestedKey


def read(td: TensorDictBase, key: NestedKey) -> Any:
    """Return ``td.get(key, None)``.

    Example:
        >>> read(TensorDict({"x": 1}), "y") is None
        True
    """
    if type(td) is TensorDict:
        if type(key) is str:
            return td._tensordict.get(key)
        if type(key) is tuple and key[0] not in td._tensordict:
            return None  # as is most often so: the keys that are asked for are optional
    return td.get(key, None)


def write(td: TensorDictBase, entries: Iterable[tuple[NestedKey, Any]]) -> None:
    """Do ``td.set(key, value)`` of each, at once where nothing has to be converted or refused.

    Example:
        >>> td = TensorDict({}, [2])
        >>> write(td, [("x", Tensor([1, 2]))])
        >>> td["x"]
        tensor([1., 2.])
    """
    plain = type(td) is TensorDict and not td._is_locked
    size, device = td.batch_size, td.device
    ndim = len(size)
    for key, value in entries:
        simple = plain and type(value) is Tensor and type(key) is str
        if simple and value.shape[:ndim] == size and device in (None, value.device):
            td._tensordict[key] = value
        else:
            td.set(key, value)


def shallow_copy(td: TensorDictBase) -> TensorDictBase:
    """Return ``td.copy()``: the same tensors in tensordicts that can be written to.

    Example:
        >>> td = TensorDict({"x": torch.zeros(2), "in": {"y": torch.zeros(2)}}, [2])
        >>> shallow_copy(td).update({"x": torch.ones(2)})["x"], td["x"]
        (tensor([1., 1.]), tensor([0., 0.]))
    """
    if type(td) is not TensorDict or td._has_names() or torch.compiler.is_compiling():
        return td.copy()
    entries = {k: v if isinstance(v, Tensor) else shallow_copy(v) for k, v in td.items()}
    return TensorDict._new_unsafe(entries, batch_size=td.batch_size, device=td.device)


def packed(entries: Mapping[NestedKey, Tensor]) -> TensorDict:
    """Return a tensordict without batch dims of these entries.

    Example:
        >>> packed({"loss": torch.zeros(()), ("leaf", "kl"): torch.ones(())})["leaf", "kl"]
        tensor(1.)
    """
    nested: dict[str, Any] = {}
    for key, value in entries.items():
        *groups, last = (key,) if isinstance(key, str) else key
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return TensorDict._new_unsafe(nested, batch_size=torch.Size())
