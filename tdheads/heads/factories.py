"""The heads of TorchRL's specs."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

from tdheads.checks import show
from tdheads.heads.bernoulli import BernoulliHead
from tdheads.heads.categorical import CategoricalHead
from tdheads.heads.choice import existing_choices
from tdheads.heads.leaf import LeafHead
from tdheads.heads.leaf_spec import count_choices, sizes
from tdheads.heads.multi_categorical import MultiCategoricalHead
from tdheads.heads.normal import BoxNormalHead, NormalHead, TanhNormalHead
from tdheads.heads.one_hot import MultiOneHotHead, OneHotCategoricalHead
from tdheads.heads.registry import register_head
from tdheads.keys import NestedKey

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
    "nvec",
    "low",
    "high",
}
# Logits of more choices than this do not fit into memory; bounds like int32's ask for them.
MOST_CHOICES = 2**24
CONTINUOUS = ("validate", "scale_mapping", "scale_lb", "free_scale")


def _take(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the named options; an option that no head knows is an error."""
    if unknown := set(options) - OPTIONS:
        known = ", ".join(sorted(OPTIONS))
        raise TypeError(f"make_head: unknown options {sorted(unknown)}; known are {known}")
    return {name: options[name] for name in names if name in options}


def _check_one_dim(action_key: NestedKey, spec: TensorSpec) -> None:
    if len(spec.shape) > 1 or 0 in spec.shape:
        raise ValueError(
            f"{show(action_key)}: no head for discrete actions of shape {list(spec.shape)}; flatten"
            " the action to one dim, or add a head with register_head"
        )


def _choices(
    action_key: NestedKey, spec: TensorSpec, nvec: Tensor, mask: Any, options: dict[str, Any]
) -> LeafHead:
    """Build the head of integers, given the number of choices ``[*agents, *event]``."""
    _check_one_dim(action_key, spec)
    nvec = nvec.cpu()  # where a head is built, whatever the device of its spec
    most = nvec.reshape(-1, *spec.shape).amax(0)
    # the difference of two int64 need not fit into one: it is negative then
    if not ((most >= 1) & (most <= MOST_CHOICES)).all():
        raise ValueError(
            f"{show(action_key)}: no head for integers with more than {MOST_CHOICES} choices; give"
            " the spec narrower bounds, or add a head with register_head"
        )
    taken = {"mask": mask, "dtype": spec.dtype}
    taken |= _take(options, "on_empty", "validate", "start", "allowed")
    joint = _take(options, "joint") if spec.shape else {}
    if (nvec != most).any():
        taken["allowed"] = existing_choices(nvec, most, **joint)
    if not spec.shape:
        return CategoricalHead(action_key, int(most), **taken)
    return MultiCategoricalHead(action_key, most.tolist(), **joint, **taken)


@register_head(Categorical)
def _categorical(
    action_key: NestedKey, spec: Categorical, *, mask: NestedKey | bool, **options: Any
) -> LeafHead:
    # a homogeneous MultiDiscrete arrives here as a Categorical of shape [k]
    nvec = count_choices(**{**sizes(spec), **_take(options, "nvec")})
    return _choices(action_key, spec, nvec, mask, options)


register_head(MultiCategorical)(_categorical)


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
    taken = {"mask": mask, "dtype": spec.dtype, **_take(options, "on_empty", "validate")}
    if not spec.shape:  # a bit without a dim of its own: a choice of 0 or 1
        return CategoricalHead(action_key, 2, **taken)
    return BernoulliHead(action_key, int(spec.shape[-1]), **taken)


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
        start = low.long()
        same = (start == start.reshape(-1, *spec.shape)[0]).all()
        start = start.reshape(-1, *spec.shape)[0] if same else start
        nvec = count_choices(low=low, high=high)
        return _choices(action_key, spec, nvec, mask, {**options, "start": start})
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
