"""From features, or from one raw tensor, to the parameter keys of a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdheads.arguments import check_count, check_number
from tdheads.checks import shape_error
from tdheads.keys import NestedKey


class HasParams(Protocol):
    """What is asked of a leaf: the shape and the key of each parameter."""

    param_shapes: dict[str, torch.Size]
    param_keys: dict[str, NestedKey]


class SplitParams(nn.Module):
    """Split ``[*B, num_params]`` into tensors ``[*B, *shape]``.

    Example:
        >>> loc, scale = SplitParams([torch.Size([2]), torch.Size([2])], "params")(
        ...     torch.zeros(5, 4)
        ... )
        >>> loc.shape
        torch.Size([5, 2])
    """

    def __init__(self, shapes: Sequence[torch.Size], in_key: NestedKey) -> None:
        super().__init__()
        self.shapes = tuple(shapes)
        self.sizes = [shape.numel() for shape in shapes]
        self.width = sum(self.sizes)
        self.flat = all(len(shape) == 1 for shape in shapes)
        self.in_key = in_key

    def forward(self, raw: Tensor) -> tuple[Tensor, ...]:
        """Split the last dim."""
        if raw.ndim == 0 or raw.shape[-1] != self.width:
            todo = "the last dim of the network's output is head.num_params"
            raise shape_error(self.in_key, f"[..., {self.width}]", raw, todo)
        parts = torch.split_with_sizes(raw, self.sizes, -1)
        if self.flat:
            return parts
        return tuple(
            part if len(shape) == 1 else part.unflatten(-1, shape) if shape else part.squeeze(-1)
            for part, shape in zip(parts, self.shapes, strict=True)
        )


def check_features(num_features: int, gain: float = 1.0) -> None:
    """Refuse a width or a gain that no layer has.

    Example:
        >>> check_features(64, 0.01)
    """
    check_count("num_features", num_features)
    check_number("gain", gain, lambda x: x >= 0, ">= 0")


class Projection(nn.Sequential):
    """A linear layer from the features to the parameters, which refuses another width.

    Example:
        >>> split = SplitParams([torch.Size([2]), torch.Size([2])], "params")
        >>> Projection(torch.nn.Linear(3, 4), split, in_key="hidden")(torch.zeros(5, 3))[0].shape
        torch.Size([5, 2])
    """

    def __init__(self, linear: nn.Linear, split: SplitParams, in_key: NestedKey) -> None:
        super().__init__(linear, split)
        self.width, self.in_key = linear.in_features, in_key

    def forward(self, features: Tensor) -> Any:
        """Project."""
        if features.shape[-1] != self.width:
            todo = f"give the width of the features: num_features={features.shape[-1]}"
            raise shape_error(self.in_key, f"[..., {self.width}]", features, todo)
        found: Any = features
        for module in self._modules.values():  # nn.Sequential takes long to say what it holds
            found = module(found)
        return found


def make_split(leaves: Sequence[HasParams], in_key: NestedKey) -> TensorDictModule:
    """Return the module that splits the raw tensor at ``in_key`` into the leaves' parameters."""
    split = _splitter(leaves, in_key)
    return TensorDictModule(split, in_keys=[in_key], out_keys=_param_keys(leaves))


def make_projection(
    leaves: Sequence[HasParams], num_features: int, in_key: NestedKey, gain: float
) -> TensorDictModule:
    """Return the linear layer that writes the leaves' parameters from the features."""
    split = _splitter(leaves, in_key)
    linear = nn.Linear(num_features, sum(split.sizes))
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    layer = Projection(linear, split, in_key)
    return TensorDictModule(layer, in_keys=[in_key], out_keys=_param_keys(leaves))


def _splitter(leaves: Sequence[HasParams], in_key: NestedKey) -> SplitParams:
    return SplitParams([s for leaf in leaves for s in leaf.param_shapes.values()], in_key)


def _param_keys(leaves: Sequence[HasParams]) -> list[NestedKey]:
    return [key for leaf in leaves for key in leaf.param_keys.values()]
