"""The plain loss."""

from __future__ import annotations

from torch import Tensor

from tdheads.losses import functional as F
from tdheads.losses.base import PolicyLoss
from tdheads.losses.policy import Terms


class PPOLoss(PolicyLoss):
    r"""Importance-weighted policy gradient over a set of action leaves, without clip or penalty.

    .. math:: L = -\mathrm{mean}_V\, w A,
              \quad \log w = \sum_l \log p_{new}(a_l) - \log p_{old}(a_l)

    A drop-in for TorchRL's ``PPOLoss``; keywords, keys read and written and what is raised are as
    in :class:`~tdheads.ClipPPOLoss`, without the clip.

    Source: Schulman et al., "Proximal Policy Optimization Algorithms", eq. 6,
    https://arxiv.org/abs/1707.06347.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead, make_actor
        >>> body = TensorDictModule(torch.nn.Linear(4, 64), ["observation"], ["hidden"])
        >>> actor = make_actor(body, CategoricalHead("action", n=3))
        >>> td = actor(TensorDict({"observation": torch.randn(5, 4)}, [5])).detach()
        >>> td["advantage"] = torch.full((5, 1), 2.0)
        >>> PPOLoss(actor)(td)["loss_objective"].item()
        -2.0
    """

    def _surrogate(self, terms: Terms) -> Tensor:
        return F.surrogate(terms.log_ratio, terms.advantage, terms.log_weight)
