"""The loss with a KL penalty."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdheads.arguments import check_count, check_flag
from tdheads.checks import transformed
from tdheads.keys import NestedKey
from tdheads.losses import functional as F
from tdheads.losses.base import PolicyLoss
from tdheads.losses.buffers import renew
from tdheads.losses.critic import Figures
from tdheads.losses.policy import PolicyRows, Terms
from tdheads.losses.settings import check_setting, number, positive
from tdheads.reduce import masked_mean, sum_leaves


class KLPENPPOLoss(PolicyLoss):
    r"""PPO with a penalty on the KL from the policy at collection, over a set of action leaves.

    .. math:: L = -\mathrm{mean}_V\, (w A - \beta \sum_l KL(p_{old,l} \,\|\, p_{new,l}))

    The KL is exact wherever a leaf has a closed form: masked, one-hot, bits, normal, squashed and
    beta leaves, leaves that depend on others by the chain rule; ``after`` leaves at the stored
    actions of their parents. The old distribution is built from the parameters that the actor wrote
    at collection (``K_logits``, ``K_loc``, ...), so keep them in the batch. beta takes part in a
    forward as it is, and moves afterwards (see :meth:`update_beta`).

    A drop-in for TorchRL's ``KLPENPPOLoss``: same keywords and keys.

    Args:
        actor_network, critic_network: as in :class:`~tdheads.ClipPPOLoss`.
        dtarg: KL that beta steers to, in nats.
        beta: first weight of the penalty.
        increment, decrement: factors of beta when the KL is above 1.5 times or below 1 / 1.5 of
            ``dtarg``.
        samples_mc_kl: draws for a leaf of another library that has no closed form.
        adapt_beta: move beta after each forward in training mode with gradients enabled; else call
            ``update_beta`` yourself.
        options: as in :class:`~tdheads.ClipPPOLoss`; with ``delay_actor`` the KL is taken from the
            policy with the target parameters.

    Raises:
        KeyError: for parameters that were not stored.
        ValueError: as :class:`~tdheads.ClipPPOLoss`; for ``increment < 1`` or ``decrement > 1``.

    Source: Schulman et al., "Proximal Policy Optimization Algorithms", section 4,
    https://arxiv.org/abs/1707.06347.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead, make_actor
        >>> body = TensorDictModule(torch.nn.Linear(4, 64), ["observation"], ["hidden"])
        >>> actor = make_actor(body, CategoricalHead("action", n=3))
        >>> td = actor(TensorDict({"observation": torch.randn(5, 4)}, [5])).detach()
        >>> td["advantage"] = torch.randn(5, 1)
        >>> loss = KLPENPPOLoss(actor, beta=1.0)
        >>> float(loss(td)["kl"]), float(loss.beta)
        (0.0, 0.5)
    """

    needs_kl = True
    settings = {
        **PolicyLoss.settings,
        "beta": number(">= 0", lambda x: x >= 0),
        "dtarg": positive,
        "increment": number(">= 1", lambda x: x >= 1),
        "decrement": number("above 0, at most 1", lambda x: 0 < x <= 1),
        "samples_mc_kl": check_count,
        "adapt_beta": check_flag,
    }
    _schedulable_buffers = frozenset({"beta"})

    beta: Tensor

    def __init__(
        self,
        actor_network: Any = None,
        critic_network: Any = None,
        *,
        dtarg: float = 0.01,
        beta: float = 1.0,
        increment: float = 2.0,
        decrement: float = 0.5,
        samples_mc_kl: int = 1,
        adapt_beta: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, critic_network, **options)
        self.dtarg, self.increment, self.decrement = dtarg, increment, decrement
        self.samples_mc_kl, self.adapt_beta = samples_mc_kl, adapt_beta
        check_setting(self.settings, "beta", beta)
        self._first_beta = float(beta)
        device = self.entropy_coeff.device
        self.register_buffer("beta", torch.tensor(self._first_beta, device=device))

    def reset(self) -> None:
        """Set beta to its first value."""
        self.beta.fill_(self._first_beta)

    @torch.no_grad()
    def update_beta(self, kl: Tensor) -> None:
        """Move beta by the KL of an update (``[]``, nats); see ``functional.adapted_beta``."""
        renew(self, "beta")
        self.beta.copy_(F.adapted_beta(self.beta, kl, self.dtarg, self.increment, self.decrement))

    def _surrogate(self, terms: Terms) -> Tensor:
        assert terms.kl is not None
        # a copy: the buffer moves before backward needs it
        beta = self.beta.clone()
        return F.penalized_surrogate(
            terms.log_ratio, terms.advantage, terms.kl, beta, terms.log_weight
        )

    def _variant_keys(self) -> list[NestedKey]:
        return ["kl"]

    def _write_variant(self, out: Figures, rows: PolicyRows) -> None:
        assert rows.kl is not None
        kl = masked_mean(sum_leaves(rows.kl).detach(), rows.valid)
        out["kl"] = kl
        # in a transform there are several KLs and one beta
        if not (self.adapt_beta and self.training and torch.is_grad_enabled()) or transformed():
            return
        if rows.valid is not None:  # a batch without a valid row has no KL, which moves nothing
            kl = kl.masked_fill(~rows.valid.any(), torch.nan)
        self.update_beta(kl)
