"""Which entry of an observation spec is the mask of an action leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchrl.data import Composite

from tdheads.checks import show
from tdheads.heads.leaf import LeafHead
from tdheads.keys import MASK, NestedKey, as_key, as_path, suffixed

# What real environments call the mask of an action, next to `K_mask`.
MASK_NAMES = (
    "action_mask",
    "action_masks",
    "avail_actions",
    "available_actions",
    "legal_action_mask",
    "legal_actions",
    "legal_moves",
    "valid_action_mask",
    "valid_actions",
)
# A name that also means other things (PettingZoo: who acts): taken only where the shape fits.
WEAK = ("mask",)


def given_masks(mask: Any, leaves: list[NestedKey]) -> dict[NestedKey, NestedKey | bool]:
    """Return what the caller says of the masks: leaf -> key, or ``False`` for none."""
    if mask is None:
        return {}
    if isinstance(mask, Mapping):
        return {as_key(leaf): key for leaf, key in mask.items()}
    if not isinstance(mask, bool) and len(leaves) > 1:
        raise ValueError(f"mask={mask!r}: say which of the leaves {leaves} it belongs to")
    return dict.fromkeys(leaves, mask)


def find_mask(
    head: LeafHead, batch: torch.Size, observation_spec: Composite | None
) -> NestedKey | bool:
    """Return the key of the leaf's mask in the observation spec, ``False`` if there is none."""
    if observation_spec is None or not head.mask_shapes:
        return False
    own_name = as_path(suffixed(head.action_key, MASK))[-1]
    group = as_path(head.action_key)[:-1]
    shapes = [torch.Size(batch + shape) for shape in head.mask_shapes]
    # under its own name beside the action, or beside what holds the action, ...
    for depth in range(len(group), -1, -1):
        own = as_key((*group[:depth], own_name))
        if own in _leaves(observation_spec) and observation_spec[own].shape in shapes:
            return own
    fitting = []
    for key in _leaves(observation_spec):
        path, name = as_path(key)[:-1], as_path(key)[-1]
        inside = path[: len(group)] == group
        around = group[: len(path)] == path
        if name not in {own_name, *MASK_NAMES, *WEAK} or not (inside or around):
            continue
        shape = observation_spec[key].shape
        if shape in shapes:
            fitting.append(key)
        elif name not in WEAK and inside:
            todo = "say joint=True for a mask over the product of the choices, or"
            if not shape:
                todo = "give the info reader the spec of the mask, or say"
            raise ValueError(
                f"{show(key)}: expected a mask of {show(head.action_key)} of shape"
                f" {' or '.join(str(list(s)) for s in shapes)}, got {list(shape)}; {todo}"
                " mask={leaf: key or False}"
            )
    if len(fitting) > 1:
        raise ValueError(
            f"{show(head.action_key)}: several entries may be its mask: {fitting}; say which with"
            " mask={leaf: key}"
        )
    return fitting[0] if fitting else False


def _leaves(spec: Composite) -> list[NestedKey]:
    return [as_key(key) for key in spec.keys(include_nested=True, leaves_only=True)]


def check_guess(head: LeafHead, others: list[LeafHead], given: Mapping[NestedKey, Any]) -> None:
    """Refuse a mask that was found for two leaves: which of them it is for is a guess."""
    for other in others:
        if head.mask_key == other.mask_key and not {head.action_key, other.action_key} & set(given):
            raise ValueError(
                f"{show(head.mask_key)}: it may be the mask of {show(other.action_key)} or of"
                f" {show(head.action_key)}; say which with mask={{leaf: key or False}}"
            )
