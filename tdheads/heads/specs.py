"""From TorchRL's specs to a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import NoneType
from typing import Any

import torch
from torchrl.data import Composite, StackedComposite, TensorSpec

from tdheads.arguments import check_flag
from tdheads.checks import show
from tdheads.heads import factories as factories  # registers the heads of TorchRL's specs
from tdheads.heads.base import Head
from tdheads.heads.composite import CompositeHead
from tdheads.heads.leaf import LeafHead
from tdheads.heads.leaf_spec import LeafSpec
from tdheads.heads.masks import (
    check_guess,
    check_spec_mask,
    check_stated,
    find_mask,
    given_masks,
    with_mask,
)
from tdheads.heads.registry import check_built, find_factory
from tdheads.heads.stacked import event_spec
from tdheads.keys import NestedKey, as_key, as_path


def make_head(
    action_spec: TensorSpec,
    observation_spec: Composite | None = None,
    *,
    group: NestedKey | None = None,
    mask: NestedKey | bool | Mapping[NestedKey, NestedKey | bool] | None = None,
    joint: bool | None = None,
    on_empty: str = "error",
    validate: bool = True,
    scale_mapping: str = "biased_softplus_1.0",
    free_scale: bool = False,
    leaf_options: Mapping[NestedKey, Mapping[str, Any]] | None = None,
) -> Head:
    """Build the head of an action spec, with its masks found in the observation spec.

    A composite spec gives one leaf per entry, under its key; any other spec gives the leaf
    ``"action"``. Dims that an entry shares with the composite around it (environments, agents) are
    batch dims, all others belong to the action. Dtype, shape and bounds of the spec are kept; where
    agents of one group differ in bounds or number of choices, each keeps its own.

    Args:
        action_spec: e.g. ``env.full_action_spec``; with ``group``, also a group's part of it,
            ``env.full_action_spec[group]``.
        observation_spec: where masks are looked for: next to the action, under ``K_mask`` or a name
            in use (``action_mask``, ``avail_actions``, ..., ``mask`` where its shape fits). An
            integer action whose mask has fewer entries than its spec has choices takes the mask's
            number: what has no entry is never legal. A mask that is wider is an error.
        group: take only the leaves inside of this entry, such as an agent group's; their keys have
            its name in front.
        mask: ``None`` to search, ``False`` for none, a key, or a mapping leaf -> key or ``False``.
        joint: ``True``: multi-discrete leaves choose among all combinations, with a joint mask;
            ``False``: their dimensions are independent. ``None`` is ``False``, unless the shape of
            a mask fits both: then it has to be stated.
        on_empty: what a row without a legal choice is, ``"error"`` or ``"neutral"``.
        validate, scale_mapping, free_scale: as in the heads.
        leaf_options: leaf -> its own values of these, e.g. ``{"kind": {"on_empty": "neutral"}}``.

    Raises:
        TypeError: for an unknown option.
        ValueError: for a spec without a head, agents whose actions no one tensor can hold, a mask
            of the wrong shape, several candidates, or a mask that only the action spec has.

    Source: TorchRL's specs, https://docs.pytorch.org/rl/stable/reference/data.html.

    Example:
        >>> from torchrl.data import Binary, Categorical, Composite
        >>> head = make_head(Categorical(6), Composite(action_mask=Binary(6)))
        >>> head.in_keys
        ['action_logits', 'action_mask']
    """
    for name, flag in {
        "joint": False if joint is None else joint,
        "validate": validate,
        "free_scale": free_scale,
    }.items():
        check_flag(name, flag)
    options = {
        "joint": bool(joint),
        "on_empty": on_empty,
        "validate": validate,
        "scale_mapping": scale_mapping,
        "free_scale": free_scale,
    }
    if not isinstance(action_spec, TensorSpec):
        raise TypeError(f"action_spec: expected a TorchRL spec, got a {type(action_spec).__name__}")
    if not isinstance(observation_spec, (Composite, NoneType)):
        kind = type(observation_spec).__name__
        raise TypeError(f"observation_spec: expected the environment's Composite, got a {kind}")
    leaves = _leaves_of(group, action_spec, observation_spec)
    if not leaves:
        raise ValueError(f"action_spec: expected an action, got none in {action_spec}")
    own = _own_options(leaf_options)
    masks = given_masks(mask, list(leaves))
    unknown = [key for key in (*own, *masks) if key not in leaves]
    if unknown:
        raise ValueError(f"unknown leaves {unknown}: expected some of {list(leaves)}")
    heads: list[LeafHead] = []
    for key, leaf in leaves.items():
        build = partial(_build, key, options={**options, **own.get(key, {})})
        head = build(leaf, False)
        found = masks[key] if key in masks else find_mask(head, leaf, observation_spec)
        if found is not False:
            if joint is None and "joint" not in own.get(key, {}):
                check_stated(head, leaf, found, observation_spec)
            head = build(with_mask(head, leaf, found, observation_spec), found)
            check_guess(head, heads, masks)
        elif key not in masks:
            check_spec_mask(head, leaf)
        heads.append(head)
    return heads[0] if len(heads) == 1 else CompositeHead(*heads)


def _leaves_of(
    group: NestedKey | None, spec: TensorSpec, around: Composite | None
) -> dict[NestedKey, LeafSpec]:
    """Return the leaves of an action spec, or those inside of a group."""
    leaves = dict(_action_leaves(spec, around))
    if group is None:
        return leaves
    group = as_key(group, "group")
    prefix = as_path(group)
    found = {key: leaf for key, leaf in leaves.items() if as_path(key)[: len(prefix)] == prefix}
    own = around[group] if around is not None and group in around.keys(True) else None
    part = isinstance(spec, Composite) and isinstance(own, Composite) and spec.shape == own.shape
    if not found and part:  # the group's part of the action spec, whose keys lack the name
        return {as_key((*prefix, *as_path(key))): leaf for key, leaf in leaves.items()}
    if not found:
        raise ValueError(f"group: expected one that has actions, got {group!r} of {list(leaves)}")
    return found


def _own_options(given: Any) -> dict[NestedKey, dict[str, Any]]:
    """Return leaf -> its own options."""
    options = {} if given is None else given
    if not isinstance(options, Mapping) or not all(
        isinstance(own, Mapping) for own in options.values()
    ):
        raise TypeError(
            "leaf_options: expected a mapping leaf -> options, e.g. {'kind': {'on_empty':"
            f" 'neutral'}}}}, got {given!r}"
        )
    return {as_key(key, "leaf_options"): dict(own) for key, own in options.items()}


def _build(
    key: NestedKey, leaf: LeafSpec, mask: NestedKey | bool, options: dict[str, Any]
) -> LeafHead:
    factory = find_factory(key, leaf.spec)
    head = factory(key, leaf.spec, mask=mask, **{**leaf.differing, **options})
    return check_built(head, key, leaf.spec)


def _action_leaves(
    spec: TensorSpec, observation_spec: Composite | None
) -> Iterator[tuple[NestedKey, LeafSpec]]:
    """Yield each leaf's key and its spec without batch dims."""
    if not isinstance(spec, Composite):
        batch = torch.Size() if observation_spec is None else observation_spec.shape
        if spec.shape[: len(batch)] != batch:
            raise ValueError(
                f"action spec of shape {list(spec.shape)}: expected it to start with the batch dims"
                f" {list(batch)} of the observation spec; take both from the same environment"
            )
        yield "action", event_spec("action", spec, batch)
        return
    _check_all_have(spec)
    for key in spec.keys(include_nested=True, leaves_only=True):
        parent = as_path(key)[:-1]
        batch = (spec[parent] if parent else spec).shape
        yield as_key(key), event_spec(as_key(key), spec[key], batch)


def _check_all_have(spec: Composite) -> None:
    """Refuse agents that have actions of other names: a stack shows only those of all."""
    for part in (spec, *spec.values(include_nested=True, leaves_only=False)):
        if not isinstance(part, StackedComposite):
            continue
        agents = [set(_keys(agent)) for agent in part.unbind(part.stack_dim)]
        stray = sorted(map(show, set().union(*agents).difference(_keys(part))))
        if stray:
            raise ValueError(
                f"action_spec: only some agents of a group have {', '.join(stray)}; build one head,"
                " actor and loss for each kind of agent"
            )


def _keys(spec: Composite) -> list[NestedKey]:
    return [as_key(key) for key in spec.keys(include_nested=True, leaves_only=True)]
