"""What a composite asks of its leaves."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from torch import Tensor

from tdheads.checks import eager, rows_where, shape_error, show
from tdheads.heads.base import Head
from tdheads.heads.leaf import LeafHead
from tdheads.keys import NestedKey, as_key
from tdheads.reduce import sum_event

STOP = 0  # the choice that ends a sequence


def check_modes(part: Head) -> None:
    """Refuse a part with options that only the composite can follow."""
    default = InteractionType.DETERMINISTIC
    same = part.return_log_prob and part.default_interaction_type is default
    if not same or part.generator is not None:
        raise ValueError(
            f"{part.dist_sample_keys}: in a composite, return_log_prob, generator and"
            " default_interaction_type are given to the CompositeHead"
        )


def check_stored(leaf: LeafHead, action: Tensor, rows: torch.Size) -> None:
    """Refuse a stored action that others depend on and that is none."""
    shape = rows + leaf.event_shape
    if action.shape != shape:
        todo = "no dim of an action may be stray or missing"
        raise shape_error(leaf.action_key, shape, action, todo)
    if leaf.num_choices is None or not leaf.validate or not eager():
        return
    index = leaf.raw_choice(action)
    bad = (index < 0) | (index >= leaf.num_choices)
    # 0 is what is written where the leaf is irrelevant, whatever its choices are
    bad &= ~(sum_event((action != 0).long(), len(leaf.event_shape)) == 0)
    if bad.any():
        raise ValueError(
            f"{show(leaf.action_key)}: the stored action {action[bad][0].tolist()} in"
            f" {rows_where(bad)} is none of its {leaf.num_choices} choices; store the action that"
            " was drawn"
        )


def check_stop(first: LeafHead, td: TensorDictBase) -> None:
    """Refuse a mask that forbids a sequence to stop."""
    if first.mask_key is None or not first.validate or not eager():
        return
    stuck = first.read_mask(td)[..., STOP] == 0
    if stuck.any():
        raise ValueError(
            f"{show(first.mask_key)}: stopping (choice {STOP}) is forbidden in {rows_where(stuck)};"
            " it has to be legal, or a sequence may have no legal end"
        )


def check_reads(
    leaf: LeafHead, module: TensorDictModuleBase, leaves: dict[NestedKey, LeafHead]
) -> None:
    """Refuse a parameter module that reads an action that it is not promised."""
    reads = [key for key in map(as_key, module.in_keys) if key in leaves]
    stray = [key for key in reads if key not in leaf.dependence.after]
    if stray:
        raise ValueError(
            f"{show(leaf.action_key)}: its parameter module reads {stray}, expected parents of"
            f" after={leaf.dependence.after} only; name them there too"
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
                " CategoricalHead or a OneHotCategoricalHead as the parent, which starts at the"
                " same number for all agents"
            )
        if not all(0 <= choice < n for choice in dependence.when.get(parent, ())):
            raise ValueError(
                f"{show(key)}: when={{{parent!r}: {list(dependence.when[parent])}}}: expected"
                f" choices from 0 to {n - 1}"
            )
    if dependence.enumerate_parents and not dependence.after:
        raise ValueError(f"{show(key)}: enumerate_parents is for leaves with after=")
    if dependence.mask_given:
        _check_mask_given(leaf)
    if dependence.enumerate_parents:
        endless = [parent for parent in dependence.after if leaves[parent].all_actions() is None]
        if endless:
            raise ValueError(
                f"{show(key)}: enumerate_parents: {endless} take infinitely many values, or others"
                " for each agent"
            )


def _check_mask_given(leaf: LeafHead) -> None:
    key = show(leaf.action_key)
    if not leaf.takes_mask_given:
        raise ValueError(f"{key}: a {type(leaf).__name__} takes no mask_given")
    if leaf.mask_key is None:
        raise ValueError(f"{key}: mask_given needs a mask: give mask=True or its key")
