"""What a composite asks of its leaves."""

from __future__ import annotations

from tensordict.nn import InteractionType

from tdheads.checks import show
from tdheads.heads.leaf import LeafHead
from tdheads.keys import NestedKey


def check_modes(leaf: LeafHead) -> None:
    """Refuse a leaf with options that only the composite can follow."""
    default = InteractionType.DETERMINISTIC
    if not leaf.return_log_prob or leaf.default_interaction_type is not default:
        raise ValueError(
            f"{show(leaf.action_key)}: in a composite, return_log_prob and default_interaction_type"
            " are given to the CompositeHead"
        )


def check_parents(leaf: LeafHead, leaves: dict[NestedKey, LeafHead]) -> None:
    """Refuse a leaf whose parents are missing, come later or cannot be parents."""
    key, dependence = leaf.action_key, leaf.dependence
    before = list(leaves)[: list(leaves).index(key)]
    for parent in dependence.parents:
        if parent not in before:
            raise ValueError(
                f"{show(key)}: expected its parent among the leaves before it, {before}, got"
                f" {parent!r}; order the heads parents first"
            )
    for parent in (*dependence.when, *([dependence.mask_given] if dependence.mask_given else ())):
        n = leaves[parent].num_choices
        if n is None:
            raise ValueError(
                f"{show(key)}: {parent!r} is not one choice; when and mask_given need a"
                " CategoricalHead or a OneHotCategoricalHead as the parent"
            )
        if not all(0 <= choice < n for choice in dependence.when.get(parent, ())):
            raise ValueError(
                f"{show(key)}: when={{{parent!r}: {list(dependence.when[parent])}}}: expected"
                f" choices from 0 to {n - 1}"
            )
    if dependence.mask_given and leaf.mask_key is None:
        raise ValueError(f"{show(key)}: mask_given needs a mask: give mask=True or its key")
    if dependence.enumerate_parents:
        endless = [parent for parent in dependence.after if leaves[parent].all_actions() is None]
        if endless:
            raise ValueError(
                f"{show(key)}: enumerate_parents: {endless} take infinitely many values"
            )
