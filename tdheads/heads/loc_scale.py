"""What heads with a location and a scale per action dim have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict.nn import mappings
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.arguments import as_shape, check_flag, check_number
from tdheads.checks import check_finite, eager
from tdheads.distributions import IndependentLeaf
from tdheads.distributions.inputs import upcast
from tdheads.heads.leaf import LeafHead
from tdheads.heads.parents import check_floating
from tdheads.keys import SCALE, NestedKey, suffixed
from tdheads.looks import look


def _mapping(name: str) -> Callable[[Tensor], Tensor]:
    todo = "see tensordict.nn.mappings"
    if not isinstance(name, str):
        raise TypeError(f"scale_mapping: expected the name of a mapping, got {name!r}; {todo}")
    try:
        with torch.device("cpu"):  # it computes a number, whatever the default device is
            return mappings(name)
    except (NotImplementedError, ValueError) as error:
        raise ValueError(f"scale_mapping: no mapping {name!r}; {todo}") from error


class LocScaleHead(LeafHead):
    """Base of heads with a location and a scale per action dim.

    The raw scale is mapped to a positive one as TorchRL's ``NormalParamExtractor`` does:
    ``scale = max(mapping(raw), scale_lb)``.

    Args:
        action_key: the leaf key ``K``.
        shape: shape of one action, ``()`` for a scalar.
        loc, scale: keys of the parameters, if they are not ``K_loc`` and ``K_scale``.
        scale_mapping: a name that :func:`tensordict.nn.mappings` knows; ``"none"`` if the network
            already writes a positive scale. ``"biased_softplus_1.0"`` maps 0 to 1.
        scale_lb: lower bound of the scale.
        free_scale: learn one scale per action dim that does not depend on the state, as SB3 and
            CleanRL do, instead of reading ``K_scale``.
        leaf: ``dtype``, ``validate``, ``return_log_prob``, ``default_interaction_type``.
    """

    takes_mask = False

    def __init__(
        self,
        action_key: NestedKey = "action",
        shape: Sequence[int] = (1,),
        *,
        loc: NestedKey | None = None,
        scale: NestedKey | None = None,
        scale_mapping: str = "biased_softplus_1.0",
        scale_lb: float = 1e-4,
        free_scale: bool = False,
        **leaf: Any,
    ) -> None:
        shape = as_shape(action_key, shape)
        check_flag("free_scale", free_scale)
        check_number("scale_lb", scale_lb, lambda x: x >= 0, ">= 0")
        if free_scale and scale is not None:
            raise ValueError(f"{action_key!r}: free_scale=True reads no scale, got scale={scale!r}")
        names = ["loc"] if free_scale else ["loc", "scale"]
        super().__init__(
            action_key,
            dict.fromkeys(names, shape),
            param_keys={"loc": loc, "scale": scale},
            **leaf,
        )
        check_floating(self.action_key, self.dtype)
        self.shape = shape
        self.scale_lb = scale_lb
        mapping = _mapping(scale_mapping)
        # a mapping that stays above the bound by itself needs none
        self._bounded = getattr(mapping, "min_val", 0.0) >= scale_lb > 0
        # not as a module: it has no parameters, and the call of a module takes as long as it does
        self.scale_mapping = mapping.forward if isinstance(mapping, nn.Module) else mapping
        self.raw_scale = nn.Parameter(torch.zeros(shape)) if free_scale else None

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one action."""
        return self.shape

    @property
    def own_keys(self) -> dict[str, NestedKey]:
        """A free scale is written under ``K_scale``."""
        return {} if self.raw_scale is None else {"scale": suffixed(self.action_key, SCALE)}

    def held_params(self) -> dict[str, Tensor]:
        """Return the raw free scale, if there is one."""
        return {} if self.raw_scale is None else {"scale": self.raw_scale}

    def own_params(self, params: Mapping[str, Tensor]) -> dict[NestedKey, Tensor]:
        """Return the raw free scale of every row."""
        if self.raw_scale is None:
            return {}
        # a copy: a view of the parameter would follow its updates
        return {self.own_keys["scale"]: self.raw_scale.expand_as(params["loc"]).clone()}

    def _loc_scale(self, loc: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        raw = self.raw_scale if scale is None else scale
        assert raw is not None
        if self.validate and eager():
            look(lambda: self._check({"loc": loc, "scale": raw}), loc, raw)
        mapped = self.scale_mapping(upcast(raw))
        if not self._bounded:
            mapped = mapped.clamp_min(self.scale_lb)
        if scale is None or scale.shape != loc.shape:
            mapped = mapped.expand_as(loc)
        return upcast(loc), mapped

    def _check(self, given: Mapping[str, Tensor]) -> None:
        for name, value in given.items():
            key = {**self.param_keys, **self.own_keys}[name]
            check_finite(value, key, "look at the network that wrote it")

    def _close(self, dist: Distribution) -> IndependentLeaf:
        return IndependentLeaf(dist, len(self.shape), validates=self.validate, names=self.names)
