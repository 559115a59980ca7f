"""Beta distribution stretched onto bounds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Beta, Gamma, register_kl

from tdheads.checks import check_positive, eager
from tdheads.distributions.bounded import (
    BoundedDistribution,
    bounds_of,
    kl_within_bounds,
    positive_pair,
)
from tdheads.distributions.bounds import Bounds
from tdheads.distributions.draw import looks_first
from tdheads.distributions.inputs import check_density_value, check_value_shape, upcast
from tdheads.keys import Names


class ScaledBeta(BoundedDistribution):
    r"""Beta distribution stretched onto ``[low, high]``.

    .. math:: a = low + (high - low)\, u, \quad u \sim \mathrm{Beta}(\alpha, \beta), \quad
              \log p(a) = \log \mathrm{Beta}(u; \alpha, \beta) - \log(high - low)

    The log-prob is that of the action *as written*, computed from the action alone; an action that
    was rounded onto a bound is scored one rounding step inside it. Where ``low == high`` the action
    is that value and contributes 0.

    Args:
        alpha, beta: positive concentrations, shape ``[*B]``; above 1 the density has one peak.
        low, high: finite bounds, broadcastable to ``[*B]``; or prepared ``bounds``.
        names, validate_args: as in :class:`~tdheads.distributions.MaskedCategorical`.

    Raises:
        ValueError: for concentrations that are not positive, and by ``log_prob`` for an action
            outside the bounds.

    Source: Chou, Maturana and Scherer, "Improving Stochastic Policy Gradients in Continuous Control
    with Deep Reinforcement Learning using the Beta Distribution", ICML 2017.

    Example:
        >>> dist = ScaledBeta(torch.full((1,), 2.0), torch.full((1,), 2.0), low=0.0, high=10.0)
        >>> dist.mean
        tensor([5.])
    """

    def __init__(
        self,
        alpha: Tensor,
        beta: Tensor,
        low: float | Tensor = 0.0,
        high: float | Tensor = 1.0,
        *,
        bounds: Bounds | None = None,
        names: Names = Names(),
        validate_args: bool | None = None,
    ) -> None:
        self.validates = validate_args is not False and eager()
        self._names = names
        alpha, beta = positive_pair(alpha, beta, ("alpha", "beta"), names.params)
        if self.validates:
            for concentration in (alpha, beta):
                check_positive(concentration, names.params, "map the network's output to one")
        alpha, beta = torch.broadcast_tensors(upcast(alpha), upcast(beta))
        self.base_dist = Beta(alpha, beta, validate_args=False)
        self.bounds = bounds_of(low, high, bounds, alpha, names)
        super().__init__(alpha.shape, validate_args=False)

    @property
    def alpha(self) -> Tensor:
        """First concentration, ``[*B]``."""
        return self.base_dist.concentration1

    @property
    def beta(self) -> Tensor:
        """Second concentration, ``[*B]``."""
        return self.base_dist.concentration0

    def _stretch(self, unit: Tensor) -> Tensor:
        return self.bounds.scale(2 * unit - 1)

    @property
    def mean(self) -> Tensor:
        """``low + (high - low) alpha / (alpha + beta)``, ``[*B]``."""
        return self._stretch(self.base_dist.mean)

    @property
    def mode(self) -> Tensor:
        """Peak of the density for concentrations of at least 1, else the mean, ``[*B]``."""
        a, b = (self.alpha - 1).clamp_min(0), (self.beta - 1).clamp_min(0)
        flat = a + b == 0
        peak = a / (a + b).masked_fill(flat, 1)
        peaked = (self.alpha >= 1) & (self.beta >= 1) & ~flat
        return self._stretch(torch.where(peaked, peak, self.base_dist.mean))

    @property
    def deterministic_sample(self) -> Tensor:
        """The mean."""
        return self.mean

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw with a gradient to the concentrations, ``[*sample_shape, *B]``."""
        # two gammas: torch's Beta draws through a function that vmap cannot transform
        shape = torch.Size(sample_shape)
        up, down = (Gamma(c, torch.ones_like(c), validate_args=False).rsample(shape)
                    for c in (self.alpha, self.beta))  # fmt: skip
        return self._stretch(up / (up + down))

    @looks_first
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of the written action ``value`` (``[*S, *B]``)."""
        check_value_shape(value, self.batch_shape, self._names)
        check_density_value(value, self._names)
        if self.validates:
            self.bounds.check(value, self._names.value)
        return self._score(value)

    def _score(self, value: Tensor) -> Tensor:
        """Log-density of an action that was drawn here: nothing is checked again."""
        y = self.bounds.unscale(value, self.alpha.dtype)
        # 1 + y and 1 - y are exact next to the bounds, where 1 - (1 + y) / 2 would not be
        up, down = (1 + y) / 2, (1 - y) / 2
        a, b = self.alpha, self.beta
        log_beta = a.lgamma() + b.lgamma() - (a + b).lgamma()
        log_prob = (a - 1) * up.log() + (b - 1) * down.log() - log_beta
        return self.bounds.drop_fixed(log_prob - self.bounds.log_width(y) - math.log(2))

    def entropy(self) -> Tensor:
        """Differential entropy in nats, ``[*B]``."""
        entropy = self.base_dist.entropy() + math.log(2)
        return self.bounds.drop_fixed(entropy + self.bounds.log_width(entropy))


register_kl(ScaledBeta, ScaledBeta)(kl_within_bounds)
