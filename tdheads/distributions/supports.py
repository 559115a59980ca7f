"""Supports that torch has no constraint for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.distributions.constraints import Constraint

from tdheads.distributions.layout import Layout
from tdheads.keys import NestedKey


class IntegerVector(Constraint):
    """Vectors of integers, each from 0 to one less than its number of options.

    Example:
        >>> IntegerVector([2, 3]).check(torch.tensor([[1, 2], [2, 1]]))
        tensor([ True, False])
    """

    is_discrete = True
    event_dim = 1

    def __init__(self, nvec: tuple[int, ...] | list[int]) -> None:
        self.nvec = tuple(nvec)

    def check(self, value: Tensor) -> Tensor:
        """Say for every vector whether it is one, ``[*B, k]`` -> ``[*B]``."""
        if value.shape[-1:] != (len(self.nvec),):
            return torch.zeros(value.shape[:-1], dtype=torch.bool, device=value.device)
        options = torch.tensor(self.nvec, device=value.device)
        return ((value % 1 == 0) & (value >= 0) & (value < options)).all(-1)


class OneHots(Constraint):
    """Concatenated one-hot vectors.

    Example:
        >>> OneHots(Layout([2, 3])).check(torch.tensor([[0, 1, 0, 0, 1], [1, 1, 0, 0, 0]]))
        tensor([ True, False])
    """

    is_discrete = True
    event_dim = 1

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def check(self, value: Tensor) -> Tensor:
        """Say for every row whether each block has one 1, ``[*B, sum(nvec)]`` -> ``[*B]``."""
        if value.shape[-1:] != (self.layout.size,):
            return torch.zeros(value.shape[:-1], dtype=torch.bool, device=value.device)
        blocks = self.layout.pad(value, 0)
        hot = ((blocks == 0) | (blocks == 1)).all(-1) & ((blocks == 1).sum(-1) == 1)
        return hot.all(-1)


class Shifted(Constraint):
    """What another constraint accepts, shifted by a constant.

    Example:
        >>> from torch.distributions import constraints
        >>> ten = constraints.integer_interval(0, 9)
        >>> Shifted(ten, torch.tensor(-3)).check(torch.tensor([-4, -3, 6, 7]))
        tensor([False,  True,  True, False])
    """

    def __init__(self, base: Constraint, start: Tensor) -> None:
        self.base, self.start = base, start

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]  # torch has a class attribute here
        """As the base."""
        return self.base.is_discrete

    @property
    def event_dim(self) -> int:  # type: ignore[override]  # torch has a class attribute here
        """As the base."""
        return self.base.event_dim

    def check(self, value: Tensor) -> Tensor:
        """Ask the base."""
        # a narrow integer dtype need not hold the difference
        value = value if value.is_floating_point() else value.long()
        return self.base.check(value - self.start)


class Leaves(Constraint):
    """Tensordicts of which every leaf is in the support of its distribution.

    Example:
        >>> from tensordict import TensorDict
        >>> from torch.distributions import constraints
        >>> both = Leaves({"a": constraints.boolean, "b": constraints.real})
        >>> td = TensorDict({"a": torch.tensor([0, 2]), "b": torch.zeros(2)}, [2])
        >>> both.check(td)
        tensor([ True, False])
    """

    def __init__(self, leaves: Mapping[NestedKey, Constraint]) -> None:
        self.leaves = dict(leaves)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]  # torch has a class attribute here
        """Whether every leaf is discrete."""
        return all(leaf.is_discrete for leaf in self.leaves.values())

    def check(self, value: TensorDictBase) -> Tensor:
        """Say for every row whether all of its leaves are in their supports, ``[*B]``."""
        found = [leaf.check(value.get(key)) for key, leaf in self.leaves.items()]
        return torch.stack(found).all(0)
