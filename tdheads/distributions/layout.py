"""Where the options of several choices stand in one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdheads.arguments import as_count
from tdheads.checks import shape_error, show
from tdheads.constants import Constants
from tdheads.keys import Names, NestedKey


def as_nvec(key: NestedKey, nvec: Any) -> list[int]:
    """Return the number of options of each dimension as integers of at least 1.

    Example:
        >>> as_nvec("action", torch.tensor([3, 2]))
        [3, 2]
    """
    listed = nvec.tolist() if hasattr(nvec, "tolist") else nvec
    sizes = [as_count(n) for n in listed] if isinstance(listed, (list, tuple)) else []
    known = [n for n in sizes if n is not None]
    if not known or len(known) != len(sizes):
        raise ValueError(
            f"{show(key)}: expected the number of options of each dimension, integers >= 1, got"
            f" nvec={list(listed) if isinstance(listed, tuple) else listed!r}"
        )
    return known


class Layout(Constants):
    r"""Where the choices of each dimension stand in a packed row ``[*B, sum(nvec)]``.

    ``pad`` turns a packed row into ``[*B, k, max(nvec)]`` with one gather, without a loop over the
    dimensions. Dimensions of equal size need no gather: the padded row is a view.

    Example:
        >>> Layout([2, 3]).pad(torch.arange(5.0), fill=-1.0)
        tensor([[ 0.,  1., -1.],
                [ 2.,  3.,  4.]])
    """

    index: Tensor
    inside: Tensor
    positions: Tensor
    start: Tensor
    last: Tensor
    block: Tensor

    def __init__(self, nvec: Sequence[int]) -> None:
        sizes = torch.tensor([int(n) for n in nvec], device="cpu").unsqueeze(-1)
        column = torch.arange(int(sizes.max()), device="cpu")
        inside = column < sizes
        start = (sizes.cumsum(0) - sizes).expand_as(inside)
        super().__init__(
            inside=inside,
            # outside of its dimension a column points at its first entry, and is then filled
            index=torch.where(inside, start + column, start),
            positions=inside.flatten().nonzero().squeeze(-1),
            start=start[:, 0].clone(),
            last=sizes.squeeze(-1) - 1,
            block=torch.arange(len(sizes), device="cpu").repeat_interleave(sizes.squeeze(-1)),
        )
        self.nvec = tuple(int(n) for n in nvec)
        self.width = max(self.nvec)
        self.equal = min(self.nvec) == self.width

    @classmethod
    def named(cls, key: NestedKey, nvec: Sequence[int]) -> Layout:
        """Build the layout of the leaf ``key``, which errors name."""
        return cls(as_nvec(key, nvec))

    @property
    def mask_shapes(self) -> tuple[torch.Size, torch.Size]:
        """Shapes of a factored mask without batch dims: flat, and padded to the widest."""
        return torch.Size([self.size]), self.inside.shape

    @property
    def size(self) -> int:
        """Length ``sum(nvec)`` of a packed row."""
        return sum(self.nvec)

    def pad(self, packed: Tensor, fill: float | bool) -> Tensor:
        """Unpack ``[*B, sum(nvec)]`` into ``[*B, k, max(nvec)]``, with ``fill`` outside."""
        if self.equal:
            return packed.unflatten(-1, (len(self.nvec), self.width))
        return self._only_inside(packed[..., self.index], fill)

    def _only_inside(self, padded: Tensor, fill: float | bool) -> Tensor:
        if padded.dtype == torch.bool:  # ONNX runtimes have no select for bools
            return padded & self.inside
        return padded.masked_fill(~self.inside, fill)

    def pack(self, padded: Tensor) -> Tensor:
        """Undo ``pad``: ``[*B, k, max(nvec)]`` into ``[*B, sum(nvec)]``."""
        flat = padded.flatten(-2)
        return flat if self.equal else flat[..., self.positions]

    # ---- on packed rows, without padding

    def log_softmax(self, packed: Tensor) -> Tensor:
        """Normalise each dimension: ``[*B, sum(nvec)]`` -> ``[*B, sum(nvec)]``.

        Example:
            >>> Layout([1, 2]).log_softmax(torch.zeros(3)).exp()
            tensor([1.0000, 0.5000, 0.5000])
        """
        if self.equal:
            return self.pad(packed, 0).log_softmax(-1).flatten(-2)
        return torch.cat([part.log_softmax(-1) for part in packed.split(self.nvec, -1)], -1)

    def sums(self, packed: Tensor) -> Tensor:
        """Sum each dimension: ``[*B, sum(nvec)]`` -> ``[*B, k]``.

        Example:
            >>> Layout([1, 2]).sums(torch.tensor([1.0, 2.0, 3.0]))
            tensor([1., 5.])
        """
        zeros = packed.new_zeros((*packed.shape[:-1], len(self.nvec)))
        return zeros.scatter_add(-1, self.block.expand_as(packed), packed)

    def spread(self, values: Tensor) -> Tensor:
        """Give each option the value of its dimension: ``[*B, k]`` -> ``[*B, sum(nvec)]``.

        Example:
            >>> Layout([1, 2]).spread(torch.tensor([1.0, 5.0]))
            tensor([1., 5., 5.])
        """
        return values.index_select(-1, self.block)

    def pad_logits(
        self, logits: Tensor, mask: Tensor | None, names: Names
    ) -> tuple[Tensor, Tensor | None]:
        """Pad packed logits and a factored mask, flat or padded, after checking their shapes."""
        batch_shape = logits.shape[:-1]
        if logits.shape[-1] != self.size:
            todo = f"the last dim packs the options of nvec={list(self.nvec)}"
            raise shape_error(names.params, (*batch_shape, self.size), logits, todo)
        if mask is not None:
            mask = self._pad_mask(mask, batch_shape, names)
        elif not self.equal:
            mask = self.inside.expand(*batch_shape, -1, -1)
        return self.pad(logits, 0.0), mask

    def _pad_mask(self, mask: Tensor, batch_shape: torch.Size, names: Names) -> Tensor:
        padded = (*batch_shape, *self.inside.shape)
        if mask.shape == (*batch_shape, self.size):
            return self.pad(mask, False)
        if mask.shape == padded:
            return mask if self.equal else self._only_inside(mask, False)
        todo = (
            "a factored mask is flat or padded to the widest dimension; a mask over the product of"
            " the choices needs joint=True"
        )
        raise shape_error(names.mask, f"{[*batch_shape, self.size]} or {list(padded)}", mask, todo)
