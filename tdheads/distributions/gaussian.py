"""Normal distribution that can be drawn from inside ``torch.vmap``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class Gaussian(Normal):
    r"""torch's normal distribution, with noise made from the parameters.

    .. math:: x = \mu + \sigma \epsilon, \quad \epsilon \sim N(0, 1)

    torch draws the noise from a tensor of zeros, of which ``torch.vmap`` does not know that each
    row needs its own.

    Shapes: loc, scale ``[*B]``, as in :class:`torch.distributions.Normal`.

    Example:
        >>> draw = lambda loc: Gaussian(loc, torch.ones(()), validate_args=False).rsample()
        >>> x = torch.vmap(draw, randomness="different")(torch.zeros(2))
        >>> bool(x[0] == x[1])
        False
    """

    def __init__(
        self, loc: Tensor, scale: Tensor | float, validate_args: bool | None = None
    ) -> None:
        if isinstance(scale, Tensor) and scale.shape == loc.shape and validate_args is False:
            self.loc, self.scale = loc, scale
            Distribution.__init__(self, loc.shape, validate_args=False)
        else:
            super().__init__(loc, scale, validate_args=validate_args)
        #: log-density at the mode
        self._peak = self.scale.log().neg() - _HALF_LOG_2_PI

    def expand(self, batch_shape: Any, _instance: Any = None) -> Gaussian:
        """Return a view of the distribution with a larger batch shape."""
        loc, scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        return Gaussian(loc, scale, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of ``value`` (``[*S, *B]``)."""
        error = (value - self.loc) / self.scale
        return torch.addcmul(self._peak, error, error, value=-0.5)

    def entropy(self) -> Tensor:
        """Differential entropy in nats, ``[*B]``."""
        return torch.rsub(self._peak, 0.5)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw with a gradient, ``[*sample_shape, *B]``."""
        loc = self.loc
        if sample_shape:
            loc = loc.expand(torch.Size(sample_shape) + self.batch_shape)
        return loc + self.scale * torch.randn_like(loc)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw without a gradient, ``[*sample_shape, *B]``."""
        with torch.no_grad():
            return self.rsample(sample_shape)
