"""The loss with a quadratic penalty on the ratio."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tdheads.losses import functional as F
from tdheads.losses.base import PolicyLoss
from tdheads.losses.policy import Terms
from tdheads.losses.settings import CLIP_NAMES, positive


def quadratic_surrogate(
    log_ratio: Tensor, advantage: Tensor, epsilon: Tensor, log_weight: Tensor | None = None
) -> Tensor:
    r"""Importance-weighted advantage less a quadratic penalty, to be maximised.

    .. math:: w A - \frac{|A|}{2 \epsilon} (w - 1)^2

    Its maximum over w is at :math:`1 + \epsilon\, \mathrm{sign} A`, where the clip of PPO begins.
    Beyond it the gradient leads back; that of a clip is 0.

    Shapes: ``[*B]``, ``[*B]``, ``[]`` -> ``[*B]``; ``log_weight`` as in
    :func:`~tdheads.losses.functional.surrogate`.

    Source: Xie et al., "Simple Policy Optimization", eq. 9, https://arxiv.org/abs/2401.16025.

    Example:
        >>> import torch
        >>> quadratic_surrogate(torch.tensor(1.5).log(), torch.tensor(2.0), torch.tensor(0.5))
        tensor(2.5000)
    """
    weight = 1 if log_weight is None else F.ratio(log_weight)
    penalty = advantage.abs() / (2 * epsilon) * (F.ratio(log_ratio) - 1).square()
    return F.surrogate(log_ratio, advantage, log_weight) - weight * penalty


class SPOLoss(PolicyLoss):
    r"""Simple Policy Optimization over a set of action leaves: PPO with a penalty for a clip.

    .. math:: L = -\mathrm{mean}_V\, \Big(w A - \frac{|A|}{2 \epsilon} (w - 1)^2\Big)

    Keywords, keys read and written and what is raised are as in :class:`~tdheads.ClipPPOLoss`.

    Args:
        actor_network, critic_network: as in :class:`~tdheads.ClipPPOLoss`.
        epsilon: distance from 1 at which the ratio is best.
        options: as in :class:`~tdheads.ClipPPOLoss`.

    Raises:
        ValueError: for ``epsilon <= 0``, and as :class:`~tdheads.ClipPPOLoss`.

    Source: Xie et al., https://arxiv.org/abs/2401.16025.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead, make_actor
        >>> body = TensorDictModule(torch.nn.Linear(4, 64), ["observation"], ["hidden"])
        >>> actor = make_actor(body, CategoricalHead("action", n=3))
        >>> td = actor(TensorDict({"observation": torch.randn(5, 4)}, [5])).detach()
        >>> td["advantage"] = torch.full((5, 1), 2.0)
        >>> SPOLoss(actor, epsilon=0.2)(td)["loss_objective"].item()
        -2.0
    """

    keyword_hints = {
        **PolicyLoss.keyword_hints,
        **dict.fromkeys(CLIP_NAMES, "it is epsilon here"),
    }
    settings = {**PolicyLoss.settings, "epsilon": positive}
    _schedulable_buffers = frozenset({"epsilon"})

    epsilon: Tensor

    def __init__(
        self,
        actor_network: Any = None,
        critic_network: Any = None,
        *,
        epsilon: float = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, critic_network, **options)
        self.register_coeff_buffer("epsilon", epsilon, device=self.entropy_coeff.device)

    def _surrogate(self, terms: Terms) -> Tensor:
        return quadratic_surrogate(terms.log_ratio, terms.advantage, self.epsilon, terms.log_weight)
