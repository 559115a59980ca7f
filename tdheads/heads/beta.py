"""Head for a bounded continuous action with a beta distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tdheads.arguments import as_shape
from tdheads.distributions import IndependentLeaf, ScaledBeta
from tdheads.distributions.bounds import Bounds
from tdheads.distributions.inputs import upcast
from tdheads.heads.leaf import LeafHead
from tdheads.heads.parents import check_floating
from tdheads.keys import NestedKey


class BetaHead(LeafHead):
    r"""A bounded continuous action of shape ``[*B, *shape]`` with a beta distribution.

    .. math:: a = low + (high - low)\, u, \quad u_i \sim \mathrm{Beta}(\alpha_i, \beta_i)

    with ``alpha = 1 + softplus(K_alpha)`` and ``beta = 1 + softplus(K_beta)``.

    Concentrations above 1 keep the density to one peak inside the bounds. Reads the raw ``K_alpha``
    and ``K_beta`` ``[*B, *shape]``; writes ``K`` and ``K_log_prob`` ``[*B]``, the log-prob of the
    action as written. Without exploration it takes the mean.

    Args:
        action_key: the leaf key ``K``.
        low, high: finite bounds, numbers or tensors that broadcast to ``shape``.
        shape: shape of one action, ``()`` for a scalar.
        alpha, beta: keys of the parameters, if they are not ``K_alpha`` and ``K_beta``.
        leaf: ``dtype``, ``validate``, ``return_log_prob``, ``default_interaction_type``.

    Raises:
        KeyError: for a missing parameter.
        ValueError: for bounds that are not finite or out of order, a wrong shape, ``nan``, and an
            action outside the bounds.

    Source: see :class:`~tdheads.distributions.ScaledBeta`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = BetaHead("action", low=0.0, high=10.0, shape=(1,))
        >>> td = TensorDict(
        ...     {"action_alpha": torch.zeros(1, 1), "action_beta": torch.zeros(1, 1)}, [1]
        ... )
        >>> head(td)["action"]
        tensor([[5.]])
    """

    takes_mask = False

    def __init__(
        self,
        action_key: NestedKey = "action",
        low: float | Tensor = 0.0,
        high: float | Tensor = 1.0,
        shape: Sequence[int] = (1,),
        *,
        alpha: NestedKey | None = None,
        beta: NestedKey | None = None,
        **leaf: Any,
    ) -> None:
        shape = as_shape(action_key, shape)
        super().__init__(
            action_key,
            {"alpha": shape, "beta": shape},
            param_keys={"alpha": alpha, "beta": beta},
            **leaf,
        )
        self.shape = shape
        check_floating(action_key, self.dtype)
        self.bounds = Bounds(low, high, shape, action_key)

    def write(self, action: Tensor) -> Tensor:
        """Return the action in the dtype in which it is written, inside the bounds there too."""
        return self.bounds.clamp(super().write(action))

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one action."""
        return self.shape

    def distribution(
        self, *, mask: Tensor | None = None, alpha: Tensor, beta: Tensor
    ) -> IndependentLeaf:
        """Build the beta with closed event dims."""
        dist = ScaledBeta(
            1 + softplus(upcast(alpha)),
            1 + softplus(upcast(beta)),
            bounds=self.bounds,
            names=self.names,
            validate_args=self.validate,
        )
        return IndependentLeaf(dist, len(self.shape), validates=self.validate, names=self.names)
