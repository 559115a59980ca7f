"""Normal distribution on a box whose entries are bounded on two sides, on one, or on none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence, register_kl

from tdheads.checks import eager, rows_where, show
from tdheads.constants import Constants
from tdheads.distributions.bounds import Bounds, fitting
from tdheads.distributions.gaussian import Gaussian
from tdheads.distributions.inputs import check_density_value, check_value_shape, upcast
from tdheads.distributions.movable import Movable
from tdheads.distributions.tanh_normal import TanhNormal
from tdheads.keys import Names, NestedKey


class Sides(Constants):
    """Which entries of a box have which bounds.

    Example:
        >>> sides = Sides(torch.tensor([0.0, 0.0]), torch.tensor([1.0, torch.inf]))
        >>> sides.two.tolist(), sides.one.tolist()
        ([True, False], [False, True])
    """

    def __init__(
        self,
        low: float | Tensor,
        high: float | Tensor,
        shape: torch.Size | None = None,
        key: NestedKey = "bounds",
    ) -> None:
        low, high = fitting(low, high, shape, key)
        if not ((low <= high) & (low < torch.inf) & (high > -torch.inf)).all():
            raise ValueError(
                f"{show(key)}: expected low <= high, got low={low.tolist()}, high={high.tolist()};"
                " an entry without a bound has -inf or inf"
            )
        below, above = low.isfinite(), high.isfinite()
        super().__init__(
            two=below & above,
            one=below ^ above,
            bound=torch.where(below, low, torch.where(above, high, 0)),
            sign=torch.where(above & ~below, -1.0, 1.0).double(),
            low=low,
            high=high,
        )
        two = below & above
        self.bounds = Bounds(torch.where(two, low, -1), torch.where(two, high, 1))

    def same_as(self, other: Sides) -> bool:
        """Whether both have equal bounds (looks at values)."""
        return torch.equal(self.low, other.low) and torch.equal(self.high, other.high)


class BoxNormal(Movable, Distribution):
    r"""Elementwise: a squashed, a log-normal or a plain normal action, as the bounds ask for.

    .. math:: a = m + h \tanh x, \quad a = low + e^x, \quad a = high - e^x, \quad a = x,
              \qquad x \sim N(\mu, \sigma^2)

    for entries bounded on both sides, from below, from above, and not at all. Log-prob, entropy and
    KL are exact for each; the log-prob is that of the action as written.

    Args:
        loc, scale: of the latent normal, shape ``[*B]``.
        sides: the bounds, which broadcast to ``[*B]``.
        names, validate_args: as in :class:`~tdheads.distributions.MaskedCategorical`.

    Raises:
        ValueError: for ``nan`` parameters, and by ``log_prob`` for an action outside the bounds.

    Source: see :class:`~tdheads.distributions.TanhNormal`.

    Example:
        >>> sides = Sides(torch.tensor([0.0, 0.0]), torch.tensor([1.0, torch.inf]))
        >>> dist = BoxNormal(torch.zeros(2), torch.ones(2), sides)
        >>> dist.deterministic_sample
        tensor([0.5000, 1.0000])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        sides: Sides,
        *,
        names: Names = Names(),
        validate_args: bool | None = None,
    ) -> None:
        self.validates = validate_args is not False and eager()
        self._names, self.sides = names, sides
        loc, scale = torch.broadcast_tensors(upcast(loc), upcast(scale))
        self.free: Any = Gaussian(loc, scale, validate_args=False)
        self.squashed = TanhNormal(loc, scale, bounds=sides.bounds, validate_args=validate_args)
        super().__init__(loc.shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> BoxNormal:
        """Return a view of the distribution with a larger batch shape."""
        loc, scale = self.free.loc.expand(batch_shape), self.free.scale.expand(batch_shape)
        return BoxNormal(loc, scale, self.sides, names=self._names, validate_args=self.validates)

    @property
    def support(self) -> constraints.Constraint:
        """The closed interval between the bounds, where there are any."""
        return constraints.interval(self.sides.low, self.sides.high)

    def _squash(self, latent: Tensor) -> Tensor:
        dtype = latent.dtype
        # the exponential of an entry that does not use it must not overflow
        grown = torch.where(self.sides.one, latent, 0).exp()
        half = self.sides.bound.to(dtype) + self.sides.sign.to(dtype) * grown
        two = self.squashed.bounds.scale(latent.tanh())
        return torch.where(self.sides.two, two, torch.where(self.sides.one, half, latent))

    @property
    def mode(self) -> Tensor:
        """The loc, mapped: the median of the action, ``[*B]``."""
        return self._squash(self.free.loc)

    @property
    def deterministic_sample(self) -> Tensor:
        """The loc, mapped."""
        return self.mode

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw with a gradient, ``[*sample_shape, *B]``."""
        return self._squash(self.free.rsample(sample_shape))

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw without a gradient, ``[*sample_shape, *B]``."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of the written action ``value`` (``[*S, *B]``)."""
        check_value_shape(value, self.batch_shape, self._names)
        check_density_value(value, self._names)
        dtype = self.free.loc.dtype
        written = value.to(dtype)
        # a bound is rounded as the written action was
        bound = self.sides.bound.to(value.dtype).double()
        distance = (value.double() - bound) * self.sides.sign
        if self.validates:
            self._check(value, distance)
        middle = self.squashed.bounds.middle.to(dtype)
        two = self.squashed.log_prob(torch.where(self.sides.two, written, middle))
        # an action that was rounded onto its bound is taken for one rounding step inside
        step = torch.finfo(value.dtype).eps * self.sides.bound.abs() + torch.finfo(dtype).tiny
        latent = torch.where(self.sides.one, torch.maximum(distance, step), 1).log().to(dtype)
        half = self.free.log_prob(latent) - latent
        free = self.free.log_prob(torch.where(self.sides.two | self.sides.one, 0, written))
        return self._select(two, half, free)

    def _check(self, value: Tensor, distance: Tensor) -> None:
        bad = self.sides.one & (distance < 0)
        if bad.any():
            raise ValueError(
                f"{show(self._names.value)}: {value[bad][0].item():g} in"
                f" {rows_where(bad.flatten(1).any(-1) if bad.ndim > 1 else bad)} is outside of its"
                " bound; write the action that the environment took, or widen the bounds"
            )

    def entropy(self) -> Tensor:
        """Differential entropy in nats, ``[*B]``, without sampling."""
        normal = self.free.entropy()
        return self._select(self.squashed.entropy(), normal + self.free.loc, normal)

    def _select(self, two: Tensor, one: Tensor, none: Tensor) -> Tensor:
        return torch.where(self.sides.two, two, torch.where(self.sides.one, one, none))


@register_kl(BoxNormal, BoxNormal)
def _kl_box_normal(p: BoxNormal, q: BoxNormal) -> Tensor:
    # KL does not change under the bijections that both sides share
    if p.validates and not p.sides.same_as(q.sides):
        raise ValueError("KL of two BoxNormal: expected the same bounds on both sides")
    kl = kl_divergence(p.free, q.free)
    return p.squashed.bounds.drop_fixed(kl)
