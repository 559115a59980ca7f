"""One spec for agents of one group whose action specs differ in size or bounds only."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torchrl.data import Binary, Bounded, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from torchrl.data.tensor_specs import Stacked

from tdheads.checks import show
from tdheads.heads.leaf_spec import LeafSpec, is_integer_choice, spanning, stack_sizes
from tdheads.keys import NestedKey


def event_spec(key: NestedKey, spec: TensorSpec, batch: torch.Size) -> LeafSpec:
    """Return a spec without its batch dims, and what differs along them.

    Raises:
        ValueError: for specs that differ in more than the number of choices or the bounds.

    Example:
        >>> from torchrl.data import Categorical
        >>> stacked = torch.stack([Categorical(2), Categorical(3)], 0)
        >>> leaf = event_spec("action", stacked, torch.Size([2]))
        >>> leaf.spec.n, leaf.differing["nvec"].tolist()
        (3, [2, 3])
    """
    own, dims = spec, batch
    # what is alike along a dim is read once, not once for each of thousands of environments
    while dims and _alike(own):
        own, dims = _first(own), dims[1:]
    parts = [_joined(key, _at(own, index)) for index in itertools.product(*map(range, dims))]
    masked = any(getattr(part, "mask", None) is not None for part in (spec, *parts))
    first = parts[0]
    if all(_same(part, first) for part in parts):
        return LeafSpec(first, {}, batch, masked)
    _check_mergeable(key, parts)
    differing = {n: x.view(*dims, *first.shape) for n, x in stack_sizes(parts).items()}
    return LeafSpec(spanning(first, differing), differing, batch, masked)


# ---- one spec out of many


def _alike(spec: TensorSpec) -> bool:
    """Whether a spec is the same all along its first dim."""
    if isinstance(spec, Stacked):
        return spec.stack_dim > 0 and all(map(_alike, spec.unbind(spec.stack_dim)))
    values = []
    if isinstance(spec, Bounded):
        values = [spec.space.low, spec.space.high]
    elif isinstance(spec, MultiCategorical):
        values = [spec.nvec]
    return all(bool((x == x[:1]).all()) for x in values)


def _first(spec: TensorSpec) -> TensorSpec:
    if isinstance(spec, Stacked):
        dim = spec.stack_dim
        return torch.stack([_first(part) for part in spec.unbind(dim)], dim - 1)
    if isinstance(spec, Binary):  # TorchRL does not index its last dim, that of agents with one bit
        return Binary(shape=spec.shape[1:], dtype=spec.dtype)
    return spec[0]


def _at(spec: TensorSpec, index: tuple[int, ...]) -> TensorSpec:
    if not index:
        return spec
    part = spec[index]
    # a stack of specs indexes its own dim only, and leaves the dims in front of it
    left = part.ndim - (spec.ndim - len(index))
    return part[(0,) * left] if left else part


def _joined(key: NestedKey, spec: TensorSpec) -> TensorSpec:
    """Return a stack along a dim of the action itself as one spec."""
    if not isinstance(spec, Stacked):
        return spec
    dim = spec.stack_dim
    parts = [_joined(key, part) for part in spec.unbind(dim)]
    _check_mergeable(key, parts)
    own = stack_sizes(parts, dim)
    if "nvec" in own:
        return MultiCategorical(own["nvec"], dtype=parts[0].dtype)
    return Bounded(own["low"], own["high"], own["low"].shape, dtype=parts[0].dtype)


def _same(a: TensorSpec, b: TensorSpec) -> bool:
    return type(a) is type(b) and _bare(a) == _bare(b)


def _bare(spec: TensorSpec) -> TensorSpec:
    """Return a spec without the mask of the moment, which does not make agents different."""
    if getattr(spec, "mask", None) is None:
        return spec
    bare = spec.clone()
    bare.mask = None
    return bare


# ---- what cannot be one spec


def _check_mergeable(key: NestedKey, parts: list[TensorSpec]) -> None:
    """Refuse actions that are not one tensor, or whose entries mean different things."""
    first = parts[0]
    apart = "or build one head, actor and loss per kind of agent"
    if any(part.shape != first.shape for part in parts):
        todo = f"pad the actions to one shape, {apart}"
        if isinstance(first, OneHot):
            todo = f"encode the actions as integers instead of one-hots, {apart}"
        raise ValueError(
            f"{show(key)}: expected actions of one shape for all agents, got"
            f" {_listed(list(part.shape) for part in parts)}, which one tensor cannot hold; {todo}"
        )
    if isinstance(first, MultiOneHot):
        raise ValueError(
            f"{show(key)}: expected one-hots of one nvec for all agents, got"
            f" {_listed([int(box.n) for box in part.space] for part in parts)}, where one entry"
            f" stands for different options; encode the actions as integers, {apart}"
        )
    boxes = isinstance(first, Bounded) and all(part.domain == first.domain for part in parts)
    alike = all(type(part) is type(first) and part.dtype == first.dtype for part in parts)
    if not (alike and (boxes or is_integer_choice(first))):
        raise ValueError(
            f"{show(key)}: expected one kind of action for all agents, got"
            f" {_listed(type(part).__name__ for part in parts)} that differ; build one head,"
            " actor and loss per kind of agent"
        )


def _listed(values: Iterable[object]) -> str:
    return " and ".join(dict.fromkeys(map(str, values)))
