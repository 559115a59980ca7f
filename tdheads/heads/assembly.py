"""What a composite head is put together from."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from tdheads.checks import show
from tdheads.heads.base import Head
from tdheads.heads.dependence import parameter_module
from tdheads.heads.leaf import LeafHead
from tdheads.heads.leaf_checks import check_modes
from tdheads.keys import NestedKey, as_key


def collect_leaves(
    heads: tuple[Head, ...],
) -> tuple[dict[NestedKey, LeafHead], dict[NestedKey, list[NestedKey]]]:
    """Return the leaves by their keys, and the sequences that are written as one tensor.

    Raises:
        ValueError: for no leaf, and for two that write the same key.
    """
    leaves = {leaf.action_key: leaf for part in heads for leaf in part.leaves}
    keys = [leaf.action_key for part in heads for leaf in part.leaves]
    if not leaves or len(leaves) != len(keys):
        raise ValueError(f"CompositeHead: expected at least one leaf, each key once, got {keys}")
    sequences: dict[NestedKey, list[NestedKey]] = {}
    for part in heads:
        sequences |= getattr(part, "sequences", {})
    written = [key for leaf in leaves.values() for key in (leaf.action_key, *leaf.log_prob_keys)]
    written += sequences
    if len(set(written)) != len(written):
        raise ValueError(f"CompositeHead: two leaves write the same key, of {written}")
    for leaf in leaves.values():
        over = [key for key in leaf.in_keys if key in written]
        if over:
            raise ValueError(
                f"{show(leaf.action_key)}: expected parameters and a mask that no leaf writes over,"
                f" got {over}; rename one of the keys"
            )
    return leaves, sequences


def parameter_modules(
    heads: tuple[Head, ...], leaves: dict[NestedKey, LeafHead], in_key: NestedKey, features: int
) -> dict[NestedKey, Any]:
    """Return what computes the parameters of each autoregressive leaf."""
    modules: dict[NestedKey, Any] = {}
    for part in heads:
        built = getattr(part, "modules_after", None)
        if built is not None:  # a composite has built its own already: one leaf, one module
            check_modes(part)
            modules |= built
    return {
        key: modules.get(key)
        or leaf.parameters_module
        or parameter_module(leaf, [leaves[p] for p in leaf.dependence.after], in_key, features)
        for key, leaf in leaves.items()
        if leaf.dependence.after
    }


def keys_read(
    leaves: dict[NestedKey, LeafHead], modules: dict[NestedKey, TensorDictModuleBase]
) -> list[NestedKey]:
    """Return every key that the leaves and their parameter modules read, but for the actions."""
    keys: list[NestedKey] = []
    for key, leaf in leaves.items():
        if key in modules:
            keys += [k for k in map(as_key, modules[key].in_keys) if k not in leaves]
            keys += [] if leaf.mask_key is None else [leaf.mask_key]
        else:
            keys += leaf.in_keys
    return list(dict.fromkeys(keys))


def lenient(leaf: LeafHead) -> LeafHead:
    """Return a twin without checks, for combinations of parents that cannot happen."""
    twin = copy.copy(leaf)  # parameters and buffers are shared
    twin.validate = False
    if hasattr(twin, "on_empty"):
        twin.on_empty = "neutral"
    return twin


def rows_of(first: LeafHead, td: TensorDictBase) -> torch.Size:
    """Return the batch shape of the leaves, read off the parameters of the first one."""
    name, shape = next(iter(first.param_shapes.items()))
    value = first.read_param(td, name)
    return value.shape[: value.ndim - len(shape)]
