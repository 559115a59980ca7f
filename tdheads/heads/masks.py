"""Which entry of an observation spec is the mask of an action leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchrl.data import Composite

from tdheads.checks import show
from tdheads.heads.leaf import LeafHead
from tdheads.heads.leaf_spec import LeafSpec
from tdheads.heads.multi_categorical import MultiCategoricalHead
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
        named = {as_key(leaf, "mask"): key for leaf, key in mask.items() if key is not None}
        return {k: m if isinstance(m, bool) else as_key(m, "mask") for k, m in named.items()}
    mask = mask if isinstance(mask, bool) else as_key(mask, "mask")
    if not isinstance(mask, bool) and len(leaves) > 1:
        raise ValueError(f"mask={mask!r}: say which of the leaves {leaves} it belongs to")
    return dict.fromkeys(leaves, mask)


def find_mask(
    head: LeafHead, leaf: LeafSpec, observation_spec: Composite | None
) -> NestedKey | bool:
    """Return the key of the leaf's mask in the observation spec, ``False`` if there is none.

    A mask with fewer entries than the leaf has choices is taken too, see :func:`narrowed`, where
    its name leaves no doubt and there is none that fits.
    """
    if observation_spec is None or not head.mask_shapes:
        return False
    own_name = as_path(suffixed(head.action_key, MASK))[-1]
    group = as_path(head.action_key)[:-1]
    shapes = {key: observation_spec[key].shape for key in _leaves(observation_spec)}
    fitting = [key for key, shape in shapes.items() if _fits(head, leaf, shape)]
    narrow = [key for key, shape in shapes.items() if narrowed(head, leaf, shape) is not None]
    # under its own name beside the action, or beside what holds the action, ...
    for depth in range(len(group), -1, -1):
        own = as_key((*group[:depth], own_name))
        if own in fitting or own in narrow:
            return own
    # ... or under a name in use, in the action's group or beside what holds the group
    named = [key for key in shapes if as_path(key)[-1] in {own_name, *MASK_NAMES, *WEAK}]
    inside = [key for key in named if as_path(key)[: len(group)] == group]
    strong = [key for key in inside if as_path(key)[-1] not in WEAK]
    for key in strong:
        if key not in fitting and key not in narrow:
            raise _misfit(head, leaf, key, shapes[key])
    around = [key for key in named if as_path(key)[:-1] == group[: len(as_path(key)) - 1]]
    found = [key for key in fitting if key in inside or key in around]
    found = found or [key for key in strong if key in narrow]
    if len(found) > 1:
        raise ValueError(
            f"{show(head.action_key)}: several entries may be its mask: {found}; say which with"
            " mask={leaf: key}"
        )
    return found[0] if found else False


def narrowed(head: LeafHead, leaf: LeafSpec, mask_shape: torch.Size) -> LeafSpec | None:
    """Return the leaf with as many choices as a mask has entries, if these are fewer.

    Some environments' specs allow more than the environment does (Jumanji's MultiCVRP: 0 to 21
    for 21 nodes). A choice without an entry in the mask can never be legal: the mask is the truth.
    """
    nvec, dims = leaf.nvec, len(leaf.batch)
    shape = mask_shape[dims:]
    if nvec is None or not shape or mask_shape[:dims] != leaf.batch:
        return None
    if isinstance(head, MultiCategoricalHead) and head.joint:  # its mask has other dims
        return None
    per_dim = shape[:-1] == nvec.shape or (len(shape) == nvec.numel() == 1)
    # a table of all combinations of the choices may have the dims of a mask per dimension
    if not per_dim or list(shape) == nvec.tolist() or not 1 <= shape[-1] < nvec.max():
        return None
    return leaf.narrowed(shape[-1])


def with_mask(
    head: LeafHead, leaf: LeafSpec, mask: NestedKey | bool, observation_spec: Composite | None
) -> LeafSpec:
    """Return the leaf as it is read with its mask: narrowed, if the mask is narrower."""
    key = suffixed(head.action_key, MASK) if isinstance(mask, bool) else as_key(mask)
    if observation_spec is None or key not in _leaves(observation_spec):
        return leaf
    shape = observation_spec[key].shape
    return leaf if _fits(head, leaf, shape) else narrowed(head, leaf, shape) or leaf


def _fits(head: LeafHead, leaf: LeafSpec, shape: torch.Size) -> bool:
    return shape in [leaf.batch + event for event in head.mask_shapes]


def _misfit(head: LeafHead, leaf: LeafSpec, key: NestedKey, shape: torch.Size) -> ValueError:
    """Build the error for an entry that is called a mask and is of no shape that one may have."""
    expected = " or ".join(str(list(leaf.batch + event)) for event in head.mask_shapes)
    event = shape[len(leaf.batch) :]
    todo = "say"
    if not shape:
        todo = "give the info reader the spec of the mask, or say"
    elif -1 in shape:
        todo = "pad the masks of all agents to one width, or say"
    elif isinstance(head, MultiCategoricalHead) and event == head.nvec and not head.joint:
        todo = "say joint=True for a mask over the product of the choices, or say"
    elif any(len(event) == len(s) and event[-1] > s[-1] for s in head.mask_shapes):
        todo = "the action has no such choices: correct one of the specs, or say"
    elif any(len(event) == len(s) + 1 and event[1:] == s for s in head.mask_shapes):
        todo = (
            "for a mask that depends on another leaf build the head by hand, CompositeHead(...,"
            " mask_given=leaf), or say"
        )
    return ValueError(
        f"{show(key)}: expected a mask of {show(head.action_key)} of shape {expected}, got"
        f" {list(shape)}; {todo} mask={{leaf: key or False}}"
    )


def check_stated(
    head: LeafHead, leaf: LeafSpec, key: NestedKey | bool, observation_spec: Composite | None
) -> None:
    """Refuse a mask that may be one per dimension, padded, or one over the product."""
    if not isinstance(head, MultiCategoricalHead) or observation_spec is None:
        return
    key = suffixed(head.action_key, MASK) if key is True else key
    shape = observation_spec[key].shape if key in _leaves(observation_spec) else torch.Size()
    if shape == leaf.batch + head.layout.mask_shapes[1] == leaf.batch + torch.Size(head.nvec):
        raise ValueError(
            f"{show(key)}: a mask of shape {list(shape)} may be one for each dimension of"
            f" {show(head.action_key)}, or one over its combinations; say joint=False or joint=True"
        )


def check_spec_mask(head: LeafHead, leaf: LeafSpec) -> None:
    """Refuse to drop a mask that only the action spec has, as in OpenSpiel's environments."""
    if leaf.masked and head.mask_shapes:
        key, own = show(head.action_key), show(suffixed(head.action_key, MASK))
        raise ValueError(
            f"{key}: its action spec has a mask, and none is found for it in the observation spec;"
            " a head reads masks from the data: write it there with the transform ActionSpecMask()"
            f" of tdheads, as {own}, or name its key with mask={{{key}: key}}; mask=False or"
            f" mask={{{key}: False}} leaves it out"
        )


def _leaves(spec: Composite) -> list[NestedKey]:
    return [as_key(key) for key in spec.keys(include_nested=True, leaves_only=True)]


def check_guess(head: LeafHead, others: list[LeafHead], given: Mapping[NestedKey, Any]) -> None:
    """Refuse a mask that was found for two leaves: which of them it is for is a guess."""
    for other in others:
        stated = {head.action_key, other.action_key} <= given.keys()
        if head.mask_key == other.mask_key and not stated:
            raise ValueError(
                f"{show(head.mask_key)}: it may be the mask of {show(other.action_key)} or of"
                f" {show(head.action_key)}; say which with mask={{leaf: key or False}}"
            )
