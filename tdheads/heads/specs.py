"""From TorchRL's specs to a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

from tdheads.checks import show
from tdheads.heads.base import Head, LeafHead
from tdheads.heads.bernoulli import BernoulliHead
from tdheads.heads.categorical import CategoricalHead
from tdheads.heads.composite import CompositeHead
from tdheads.heads.masks import check_guess, find_mask, given_masks
from tdheads.heads.multi_categorical import MultiCategoricalHead
from tdheads.heads.normal import BoxNormalHead, NormalHead, TanhNormalHead
from tdheads.heads.one_hot import MultiOneHotHead, OneHotCategoricalHead
from tdheads.heads.stacked import event_spec
from tdheads.keys import NestedKey, as_key, as_path

Factory = Callable[..., LeafHead]
F = TypeVar("F", bound=Factory)

_FACTORIES: dict[type[TensorSpec], Factory] = {}

OPTIONS = {
    "joint",
    "on_empty",
    "validate",
    "scale_mapping",
    "scale_lb",
    "free_scale",
    "grad_method",
    "temperature",
    "start",
    "allowed",
    "low",
    "high",
}
CONTINUOUS = ("validate", "scale_mapping", "scale_lb", "free_scale")


def register_head(spec_class: type[TensorSpec]) -> Callable[[F], F]:
    """Decorate a factory ``(action_key, spec, *, mask, **options) -> head`` for a spec class.

    ``spec`` has no batch dims. ``options`` holds :func:`make_head`'s keywords (``on_empty``,
    ``validate``, ...), and what ``leaf_options`` gives for the leaf; take what the head needs. A
    later registration replaces an earlier one; a spec takes the entry of its closest base class.

    Example:
        >>> from torchrl.data import NonTensor
        >>> from tdheads import CategoricalHead
        >>> @register_head(NonTensor)
        ... def first_ten(action_key, spec, *, mask, on_empty, **options):
        ...     return CategoricalHead(action_key, n=10, mask=mask, on_empty=on_empty)
        >>> make_head(NonTensor(())).n
        10
        >>> del _FACTORIES[NonTensor]
    """

    def register(factory: F) -> F:
        _FACTORIES[spec_class] = factory
        return factory

    return register


def make_head(
    action_spec: TensorSpec,
    observation_spec: Composite | None = None,
    *,
    mask: NestedKey | bool | Mapping[NestedKey, NestedKey | bool] | None = None,
    joint: bool = False,
    on_empty: str = "error",
    validate: bool = True,
    scale_mapping: str = "biased_softplus_1.0",
    free_scale: bool = False,
    leaf_options: Mapping[NestedKey, Mapping[str, Any]] | None = None,
) -> Head:
    """Build the head of an action spec, with its masks found in the observation spec.

    A composite spec gives one leaf per entry, under its key; any other spec gives the leaf
    ``"action"``. Dims that an entry shares with the composite around it (environments, agents) are
    batch dims, all others belong to the action. Dtype, shape and bounds of the spec are kept.

    Args:
        action_spec: e.g. ``env.full_action_spec`` or a group's part of it.
        observation_spec: where masks are looked for: next to the action, under ``K_mask`` or a name
            in use (``action_mask``, ``avail_actions``, ..., ``mask`` where its shape fits).
        mask: ``None`` to search, ``False`` for none, a key, or a mapping leaf -> key or ``False``.
        joint: multi-discrete leaves choose among all combinations, with a joint mask.
        on_empty: what a row without a legal choice is, ``"error"`` or ``"neutral"``.
        validate, scale_mapping, free_scale: as in the heads.
        leaf_options: leaf -> its own values of these, e.g. ``{"kind": {"on_empty": "neutral"}}``.

    Raises:
        TypeError: for an unknown option.
        ValueError: for a spec without a head, a mask of the wrong shape, or several candidates.

    Source: TorchRL's specs, https://docs.pytorch.org/rl/stable/reference/data.html.

    Example:
        >>> from torchrl.data import Binary, Categorical, Composite
        >>> head = make_head(Categorical(6), Composite(action_mask=Binary(6)))
        >>> head.in_keys
        ['action_logits', 'action_mask']
    """
    options = {
        "joint": joint,
        "on_empty": on_empty,
        "validate": validate,
        "scale_mapping": scale_mapping,
        "free_scale": free_scale,
    }
    if not isinstance(action_spec, TensorSpec):
        raise TypeError(f"action_spec: expected a TorchRL spec, got a {type(action_spec).__name__}")
    leaves = dict(_action_leaves(action_spec, observation_spec))
    if not leaves:
        raise ValueError(
            "action_spec: no action that all its parts have; build one head, actor and loss for"
            " each kind of agent"
        )
    own = {as_key(key): dict(value) for key, value in (leaf_options or {}).items()}
    masks = given_masks(mask, list(leaves))
    unknown = [key for key in (*own, *masks) if key not in leaves]
    if unknown:
        raise ValueError(f"unknown leaves {unknown}: expected some of {list(leaves)}")
    heads: list[LeafHead] = []
    for key, ((spec, differing), batch) in leaves.items():
        factory = _factory(key, spec)
        head = factory(key, spec, mask=False, **{**options, **differing, **own.get(key, {})})
        found = masks[key] if key in masks else find_mask(head, batch, observation_spec)
        if found is not False:
            head = factory(key, spec, mask=found, **{**options, **differing, **own.get(key, {})})
            check_guess(head, heads, masks)
        heads.append(head)
    return heads[0] if len(heads) == 1 else CompositeHead(*heads)


def _action_leaves(
    spec: TensorSpec, observation_spec: Composite | None
) -> Iterator[tuple[NestedKey, tuple[tuple[TensorSpec, dict[str, Any]], torch.Size]]]:
    """Yield each leaf's key, its spec without batch dims with options, and the batch dims."""
    if not isinstance(spec, Composite):
        batch = torch.Size() if observation_spec is None else observation_spec.shape
        if spec.shape[: len(batch)] != batch:
            raise ValueError(
                f"action spec of shape {list(spec.shape)}: expected it to start with the batch dims"
                f" {list(batch)} of the observation spec; take both from the same environment"
            )
        yield "action", (event_spec("action", spec, batch), batch)
        return
    for key in spec.keys(include_nested=True, leaves_only=True):
        parent = as_path(key)[:-1]
        batch = (spec[parent] if parent else spec).shape
        yield as_key(key), (event_spec(as_key(key), spec[key], batch), batch)


def _factory(key: NestedKey, spec: TensorSpec) -> Factory:
    for cls in type(spec).__mro__:
        if cls in _FACTORIES:
            return _FACTORIES[cls]
    known = ", ".join(sorted(cls.__name__ for cls in _FACTORIES))
    raise ValueError(
        f"{show(key)}: no head for a {type(spec).__name__} of shape {list(spec.shape)}; there is"
        f" one for {known}; add yours with register_head({type(spec).__name__})"
    )


def _take(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the named options; an option that no head knows is an error."""
    if unknown := set(options) - OPTIONS:
        known = ", ".join(sorted(OPTIONS))
        raise TypeError(f"make_head: unknown options {sorted(unknown)}; known are {known}")
    return {name: options[name] for name in names if name in options}


def _check_one_dim(action_key: NestedKey, spec: TensorSpec) -> None:
    if len(spec.shape) > 1:
        raise ValueError(
            f"{show(action_key)}: no head for discrete actions of shape {list(spec.shape)}; flatten"
            " the action to one dim, or add a head with register_head"
        )


def _choices(
    action_key: NestedKey, spec: TensorSpec, nvec: list[int], mask: Any, options: dict[str, Any]
) -> LeafHead:
    _check_one_dim(action_key, spec)
    taken = {"mask": mask, "dtype": spec.dtype}
    taken |= _take(options, "on_empty", "validate", "start")
    if not spec.shape:
        return CategoricalHead(action_key, nvec[0], **taken, **_take(options, "allowed"))
    return MultiCategoricalHead(action_key, nvec, **_take(options, "joint"), **taken)


@register_head(Categorical)
def _categorical(
    action_key: NestedKey, spec: Categorical, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    # a homogeneous MultiDiscrete arrives here as a Categorical of shape [k]
    return _choices(action_key, spec, [int(spec.n)] * max(spec.shape.numel(), 1), mask, options)


@register_head(MultiCategorical)
def _multi_categorical(
    action_key: NestedKey, spec: MultiCategorical, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    return _choices(action_key, spec, [int(n) for n in spec.nvec], mask, options)


@register_head(OneHot)
def _one_hot(
    action_key: NestedKey, spec: OneHot, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    taken = _hot(action_key, spec, options)
    return OneHotCategoricalHead(action_key, int(spec.space.n), mask=mask, **taken)


@register_head(MultiOneHot)
def _multi_one_hot(
    action_key: NestedKey, spec: MultiOneHot, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    taken = _hot(action_key, spec, options)
    nvec = [int(box.n) for box in spec.space]
    return MultiOneHotHead(action_key, nvec, mask=mask, **taken)


@register_head(Binary)
def _binary(
    action_key: NestedKey, spec: Binary, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    _check_one_dim(action_key, spec)
    taken = _take(options, "on_empty", "validate")
    n = int(spec.shape[-1])
    return BernoulliHead(action_key, n, mask=mask, dtype=spec.dtype, **taken)


def _hot(action_key: NestedKey, spec: TensorSpec, options: dict[str, Any]) -> dict[str, Any]:
    _check_one_dim(action_key, spec)
    names = ("on_empty", "validate", "grad_method", "temperature")
    return {"dtype": spec.dtype, **_take(options, *names)}


@register_head(Bounded)
def _bounded(
    action_key: NestedKey, spec: Bounded, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    low, high = options.get("low", spec.space.low), options.get("high", spec.space.high)
    if spec.domain == "discrete":
        nvec = (high.long() - low.long() + 1).reshape(-1).tolist()
        return _choices(action_key, spec, nvec, mask, {**options, "start": low.long().tolist()})
    taken = {"dtype": spec.dtype, **_take(options, *CONTINUOUS)}
    if (low.isfinite() & high.isfinite()).all():
        return TanhNormalHead(action_key, low, high, spec.shape, **taken)
    if not (low.isfinite() | high.isfinite()).any():
        return NormalHead(action_key, spec.shape, **taken)
    return BoxNormalHead(action_key, low, high, spec.shape, **taken)


@register_head(Unbounded)
def _unbounded(
    action_key: NestedKey, spec: Unbounded, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    if spec.domain == "discrete":
        raise ValueError(
            f"{show(action_key)}: no head for integers without bounds; give the spec bounds, or use"
            " register_head(UnboundedDiscrete)"
        )
    return NormalHead(action_key, spec.shape, dtype=spec.dtype, **_take(options, *CONTINUOUS))
