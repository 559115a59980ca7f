"""Heads for continuous actions: unbounded, and bounded by tanh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict.nn import mappings
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.arguments import as_shape, check_flag, check_number
from tdheads.checks import check_finite, eager
from tdheads.distributions import IndependentLeaf, TanhNormal
from tdheads.distributions.bounds import Bounds
from tdheads.distributions.box_normal import BoxNormal, Sides
from tdheads.distributions.gaussian import Gaussian
from tdheads.distributions.inputs import upcast
from tdheads.heads.leaf import LeafHead
from tdheads.heads.parents import check_floating
from tdheads.keys import SCALE, NestedKey, suffixed


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
        self.scale_mapping = _mapping(scale_mapping)
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
            todo = "look at the network that wrote it"
            for name, value in {"loc": loc, "scale": scale}.items():
                if value is not None:
                    check_finite(value, {**self.param_keys, **self.own_keys}[name], todo)
        mapped = self.scale_mapping(upcast(raw)).clamp_min(self.scale_lb)
        return upcast(loc), mapped.expand_as(loc)

    def _close(self, dist: Distribution) -> IndependentLeaf:
        checks = self.validate and eager()
        return IndependentLeaf(dist, len(self.shape), validates=checks, names=self.names)


class NormalHead(LocScaleHead):
    r"""An unbounded continuous action of shape ``[*B, *shape]``.

    .. math:: \log p(a) = \sum_i \log N(a_i; \mu_i, \sigma_i^2)

    Reads ``K_loc`` and the raw ``K_scale`` ``[*B, *shape]``; writes ``K`` and ``K_log_prob``
    ``[*B]``. The event dims are always closed: the log-prob has one entry per row.

    Args:
        options: see :class:`LocScaleHead`.

    Raises:
        KeyError: for a missing parameter.
        ValueError: for a wrong shape or ``nan``.

    Source: the Gaussian policy of Schulman et al., https://arxiv.org/abs/1707.06347.

    Example:
        >>> from tensordict import TensorDict
        >>> head = NormalHead("action", shape=(2,))
        >>> td = TensorDict(
        ...     {"action_loc": torch.ones(4, 2), "action_scale": torch.zeros(4, 2)}, [4]
        ... )
        >>> head(td)["action_log_prob"].shape
        torch.Size([4])
    """

    def distribution(
        self, *, mask: Tensor | None = None, loc: Tensor, scale: Tensor | None = None
    ) -> IndependentLeaf:
        """Build the normal with closed event dims."""
        return self._close(Gaussian(*self._loc_scale(loc, scale), validate_args=False))


class TanhNormalHead(LocScaleHead):
    r"""A bounded continuous action of shape ``[*B, *shape]``: a normal squashed by tanh.

    .. math:: a = m + h \tanh x, \quad x_i \sim N(\mu_i, \sigma_i^2)

    Reads ``K_loc`` and the raw ``K_scale`` ``[*B, *shape]``; writes ``K`` and ``K_log_prob``
    ``[*B]``, the log-prob of the action as written. A loc of 0 is the middle of the bounds.

    Args:
        low, high: finite bounds, numbers or tensors that broadcast to ``shape``.
        options: see :class:`LocScaleHead`.

    Raises:
        KeyError: for a missing parameter.
        ValueError: for bounds that are not finite or out of order, a wrong shape, ``nan``, and an
            action outside the bounds.

    Source: see :class:`~tdheads.distributions.TanhNormal`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = TanhNormalHead("action", low=0.0, high=10.0, shape=(1,))
        >>> td = TensorDict(
        ...     {"action_loc": torch.zeros(1, 1), "action_scale": torch.zeros(1, 1)}, [1]
        ... )
        >>> head(td)["action"]
        tensor([[5.]])
    """

    def __init__(
        self,
        action_key: NestedKey = "action",
        low: float | Tensor = -1.0,
        high: float | Tensor = 1.0,
        shape: Sequence[int] = (1,),
        **options: Any,
    ) -> None:
        super().__init__(action_key, shape, **options)
        self.bounds = Bounds(low, high, self.shape, action_key)

    def write(self, action: Tensor) -> Tensor:
        """Return the action in the dtype in which it is written, inside the bounds there too."""
        return self.bounds.clamp(super().write(action))

    def distribution(
        self, *, mask: Tensor | None = None, loc: Tensor, scale: Tensor | None = None
    ) -> IndependentLeaf:
        """Build the squashed normal with closed event dims."""
        dist = TanhNormal(
            *self._loc_scale(loc, scale),
            bounds=self.bounds,
            names=self.names,
            validate_args=self.validate,
        )
        return self._close(dist)


class BoxNormalHead(LocScaleHead):
    r"""A continuous action in a box that is bounded on both sides, on one or on none, per entry.

    .. math:: a = m + h \tanh x, \quad a = low + e^x, \quad a = high - e^x, \quad a = x

    Reads ``K_loc`` and the raw ``K_scale`` ``[*B, *shape]``; writes ``K`` and ``K_log_prob``
    ``[*B]``, the log-prob of the action as written. What :func:`~tdheads.make_head` builds for
    boxes that are only partly finite.

    Args:
        low, high: numbers or tensors that broadcast to ``shape``, infinite where there is no bound.
        options: see :class:`LocScaleHead`.

    Raises:
        KeyError: for a missing parameter.
        ValueError: for bounds out of order, a wrong shape, ``nan``, an action outside the bounds.

    Source: see :class:`~tdheads.distributions.BoxNormal`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = BoxNormalHead("action", torch.zeros(2), torch.tensor([1.0, torch.inf]), (2,))
        >>> zeros = torch.zeros(1, 2)
        >>> head(TensorDict({"action_loc": zeros, "action_scale": zeros}, [1]))["action"]
        tensor([[0.5000, 1.0000]])
    """

    def __init__(
        self,
        action_key: NestedKey,
        low: float | Tensor,
        high: float | Tensor,
        shape: Sequence[int] = (1,),
        **options: Any,
    ) -> None:
        super().__init__(action_key, shape, **options)
        self.sides = Sides(low, high, self.shape, action_key)

    def write(self, action: Tensor) -> Tensor:
        """Return the action in the dtype in which it is written: finite, and inside the bounds."""
        written = super().write(action)
        most = torch.finfo(written.dtype).max
        bound = self.sides.bound.to(written.dtype)
        above, below = written.clamp_min(bound), written.clamp_max(bound)
        half = torch.where(self.sides.sign > 0, above, below)
        return torch.where(self.sides.one, half, written).clamp(-most, most)

    def distribution(
        self, *, mask: Tensor | None = None, loc: Tensor, scale: Tensor | None = None
    ) -> IndependentLeaf:
        """Build the distribution with closed event dims."""
        loc, scale = self._loc_scale(loc, scale)
        return self._close(
            BoxNormal(loc, scale, self.sides, names=self.names, validate_args=self.validate)
        )
