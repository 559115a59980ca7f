"""Embeddings of actions, for the leaves that come after them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tdheads.constants import Constants


class FlatLinear(nn.Module):
    """Linear embedding of an action that is a vector of numbers.

    Example:
        >>> FlatLinear(torch.Size([2, 3]), 4)(torch.zeros(5, 2, 3, dtype=torch.int64)).shape
        torch.Size([5, 4])
    """

    def __init__(self, event_shape: torch.Size, width: int) -> None:
        super().__init__()
        self.event_ndim = len(event_shape)
        self.linear = nn.Linear(event_shape.numel(), width, bias=False)

    def forward(self, action: Tensor) -> Tensor:
        """Embed."""
        flat = action.flatten(-self.event_ndim) if self.event_ndim else action.unsqueeze(-1)
        return self.linear(flat.to(self.linear.weight.dtype))


class ChoiceEmbedding(nn.Embedding):
    """One vector per choice, for actions of any integer dtype.

    Example:
        >>> ChoiceEmbedding(3, 4)(torch.tensor([0, 2], dtype=torch.int8)).shape
        torch.Size([2, 4])
    """

    def __init__(self, n: int, width: int, start: Constants | None = None) -> None:
        super().__init__(n, width)
        self.start = start

    def forward(self, action: Tensor) -> Tensor:
        """Embed."""
        index = action.long()
        index = index if self.start is None else index - self.start.first
        return super().forward(index.clamp(0, self.num_embeddings - 1))


class PackedEmbedding(nn.Module):
    """One vector per option of every dimension, summed over the dimensions.

    Example:
        >>> PackedEmbedding([3, 2], 4)(torch.tensor([[2, 1]])).shape
        torch.Size([1, 4])
    """

    def __init__(self, nvec: Sequence[int], width: int, start: Constants | None = None) -> None:
        super().__init__()
        sizes = torch.tensor(nvec, device="cpu")
        start_of = 0 if start is None else start.first.cpu()
        self.row = Constants(first=sizes.cumsum(0) - sizes - start_of)
        self.table = nn.Embedding(sum(nvec), width)

    def forward(self, action: Tensor) -> Tensor:
        """Embed."""
        index = (action.long() + self.row.first).clamp(0, self.table.num_embeddings - 1)
        return self.table(index).sum(-2)
