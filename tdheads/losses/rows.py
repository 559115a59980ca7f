"""Which rows of a batch count, and what the others hold instead of their garbage."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdheads.checks import shape_error
from tdheads.keys import NestedKey


def find_valid(td: TensorDictBase, mask_keys: Iterable[NestedKey]) -> Tensor | None:
    """Combine the validity masks that are there: bool ``[*B]`` or ``[*B, agents]``, or ``None``.

    A trailing dim of size 1, as masks next to ``[*B, 1]`` rewards have, is dropped.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"valid": torch.tensor([[True], [False]])}, [2])
        >>> find_valid(td, ["valid", "other"])
        tensor([ True, False])
    """
    valid = None
    for key in mask_keys:
        mask = td.get(key, None)
        if mask is None:
            continue
        mask = mask.bool()
        while mask.ndim > max(td.batch_dims, 1) and mask.shape[-1] == 1:
            mask = mask.squeeze(-1)
        if mask.shape[: td.batch_dims] != td.batch_size:
            raise shape_error(key, list(td.batch_size), mask, "one entry per row of the batch")
        if valid is not None:
            ndim = max(mask.ndim, valid.ndim)
            mask, valid = _pad_dims(mask, ndim), _pad_dims(valid, ndim)
        valid = mask if valid is None else valid & mask
    return valid


def valid_for(valid: Tensor | None, shape: torch.Size) -> Tensor | None:
    """Return the validity mask for rows of another shape: agents share or join their team's.

    Example:
        >>> valid_for(torch.tensor([True, False]), torch.Size([2, 3]))[:, 0]
        tensor([ True, False])
        >>> valid_for(torch.tensor([[True, False], [False, False]]), torch.Size([2]))
        tensor([ True, False])
    """
    if valid is None:
        return None
    if valid.ndim > len(shape):
        valid = valid.flatten(len(shape)).any(-1)
    return _pad_dims(valid, len(shape)).expand(shape)


def fill_invalid(td: TensorDictBase, valid: Tensor, keys: Iterable[NestedKey]) -> TensorDictBase:
    """Give every invalid row the content of the first valid one, for the entries in ``keys``.

    What an invalid row holds must reach no parameter, and ``0 * nan`` is ``nan`` in a backward
    pass, so leaving such a row out of the mean is not enough: the network must not see it. A copy
    of a valid row is a legal input for every network and every mask.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"x": torch.tensor([float("nan"), 1.0])}, [2])
        >>> fill_invalid(td, torch.tensor([False, True]), ["x"])["x"]
        tensor([1., 1.])
    """
    per_row = valid_for(valid, td.batch_size)
    out = td.copy()
    for key in keys:
        value = td.get(key, None)
        if not isinstance(value, Tensor):
            continue
        mask = valid if value.shape[: valid.ndim] == valid.shape else per_row
        if mask is not None and mask.ndim and value.shape[: mask.ndim] == mask.shape:
            out.set(key, _copy_first_valid(value, mask))
    return out


def _copy_first_valid(value: Tensor, valid: Tensor) -> Tensor:
    flat = valid.reshape(-1)
    here = torch.arange(flat.numel(), device=flat.device)
    source = torch.where(flat, here, flat.to(torch.int8).argmax() if flat.numel() else here)
    return value.flatten(0, valid.ndim - 1)[source].view(value.shape)


def _pad_dims(x: Tensor, ndim: int) -> Tensor:
    return x.reshape(*x.shape, *[1] * (ndim - x.ndim))
