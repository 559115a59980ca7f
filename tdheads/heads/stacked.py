"""One spec for agents of one group whose action specs differ in size or bounds only."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torchrl.data import Bounded, Categorical, TensorSpec

from tdheads.checks import show
from tdheads.keys import NestedKey


def event_spec(
    key: NestedKey, spec: TensorSpec, batch: torch.Size
) -> tuple[TensorSpec, dict[str, Any]]:
    """Return a spec without its batch dims, and what differs along them as options for the head.

    Choices of different number become the largest number, with a constant mask; bounds keep the
    dims along which they differ.

    Raises:
        ValueError: for specs that differ otherwise.

    Example:
        >>> stacked = torch.stack([Categorical(2), Categorical(3)], 0)
        >>> spec, options = event_spec("action", stacked, torch.Size([2]))
        >>> spec.n, options["allowed"].tolist()
        (3, [[True, True, False], [True, True, True]])
    """
    if not batch:
        return spec, {}
    parts = {index: _at(spec, index) for index in itertools.product(*map(range, batch))}
    first = next(iter(parts.values()))
    if all(_same(part, first) for part in parts.values()):
        return first, {}
    # environments are alike: only the dims of the agents matter
    while len(batch) > 1 and all(_same(part, parts[(0, *i[1:])]) for i, part in parts.items()):
        parts = {index[1:]: part for index, part in parts.items() if index[0] == 0}
        batch = batch[1:]
    merged = _merge_choices(list(parts.values()), batch) or _merge_boxes(
        list(parts.values()), batch
    )
    if merged is None:
        raise ValueError(
            f"{show(key)}: expected one action spec for all of its batch dims {list(batch)}, got"
            " different ones; build one head, actor and loss per kind of agent"
        )
    return merged


def _at(spec: TensorSpec, index: tuple[int, ...]) -> TensorSpec:
    part = spec[index]
    # a stack of specs indexes its own dim only, and leaves the dims in front of it
    left = part.ndim - (spec.ndim - len(index))
    return part[(0,) * left] if left else part


def _same(a: TensorSpec, b: TensorSpec) -> bool:
    return type(a) is type(b) and _bare(a) == _bare(b)


def _bare(spec: TensorSpec) -> TensorSpec:
    """Return a spec without the mask of the moment, which does not make agents different."""
    if getattr(spec, "mask", None) is None:
        return spec
    bare = spec.clone()
    bare.mask = None
    return bare


def _merge_choices(
    parts: list[TensorSpec], batch: torch.Size
) -> tuple[TensorSpec, dict[str, Any]] | None:
    """Merge single choices that differ in their number."""
    kinds = {(type(part), part.dtype, part.shape) for part in parts}
    if kinds != {(Categorical, parts[0].dtype, torch.Size())}:
        return None
    sizes = torch.tensor([int(part.space.n) for part in parts]).view(*batch, 1)
    most = int(sizes.max())
    return Categorical(most, dtype=parts[0].dtype), {"allowed": torch.arange(most) < sizes}


def _merge_boxes(
    parts: list[TensorSpec], batch: torch.Size
) -> tuple[TensorSpec, dict[str, Any]] | None:
    """Merge boxes that differ in their bounds."""
    kinds = {(part.domain, part.dtype, part.shape) for part in parts}
    if len(kinds) > 1 or not all(isinstance(part, Bounded) for part in parts):
        return None
    if parts[0].domain != "continuous":
        return None
    shape = (*batch, *parts[0].shape)
    bounds = {
        name: torch.stack([getattr(part.space, name) for part in parts]).view(shape)
        for name in ("low", "high")
    }
    return parts[0], bounds
