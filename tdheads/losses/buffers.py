"""Buffers that a forward moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torchrl.modules import ValueNorm


def renew(module: nn.Module, *names: str) -> None:
    """Give a compiled module copies of its buffers (all of them, or those named) to move.

    torch.compile may compute an intermediate result again in the backward pass, from the buffer
    itself: if that was moved in place in the meantime, the gradient is wrong, without a word. A
    copy is an intermediate result too, and leaves the buffer that entered alone. In eager mode a
    buffer is moved in place, which whoever holds it sees (``DistributedDataParallel`` does).

    Example:
        >>> norm = nn.BatchNorm1d(3)
        >>> before = norm.running_mean
        >>> renew(norm)
        >>> norm.running_mean is before
        True
    """
    if torch.compiler.is_compiling():
        for name in names or list(module._buffers):
            buffer = module._buffers[name]
            if buffer is not None:
                module._buffers[name] = buffer.clone()


def move(norm: ValueNorm, target: Tensor, rows: Tensor | None) -> None:
    """Fold the valid rows of a batch of value targets into running statistics, if there are any.

    How many rows there are is known on the host only: with a validity mask this waits for the
    device and does not compile.

    Example:
        >>> class Show(nn.Module):
        ...     def update(self, target):
        ...         print(target)
        >>> move(Show(), torch.tensor([[1.0], [3.0]]), torch.tensor([False, False]))
        >>> move(Show(), torch.tensor([[1.0], [3.0]]), torch.tensor([False, True]))
        tensor([[3.]])
    """
    target = target if rows is None else target[rows]
    if target.numel():
        renew(norm)
        norm.update(target)
