"""Heads for continuous actions: unbounded, and bounded by tanh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdheads.distributions import IndependentLeaf, TanhNormal
from tdheads.distributions.bounds import Bounds
from tdheads.distributions.box_normal import BoxNormal, Sides
from tdheads.distributions.gaussian import Gaussian
from tdheads.heads.loc_scale import LocScaleHead
from tdheads.keys import NestedKey


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
