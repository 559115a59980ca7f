"""The policy at collection, and the KL from it to the current one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from tdheads.checks import require
from tdheads.distributions import ActionDistribution, GatedLeaf
from tdheads.distributions.closed_forms import has_closed_form, is_registered
from tdheads.keys import NestedKey, as_key
from tdheads.losses.adapter import as_action_distribution, draw_and_score

if TYPE_CHECKING:
    from tdheads.losses.module import PolicyLossModule


def stored_keys(actor: Any) -> list[NestedKey]:
    """Return the keys from which the distribution at collection is built again.

    Example:
        >>> from tdheads import CategoricalHead
        >>> stored_keys(CategoricalHead("action", n=2, mask=True))
        ['action_logits', 'action_mask']
    """
    module = _last_module(actor)
    return [as_key(key) for key in getattr(module, "stored_keys", module.in_keys)]


def _last_module(actor: Any) -> Any:
    found = [m for m in actor.modules() if isinstance(m, ProbabilisticTensorDictModule)]
    if not found:
        raise TypeError(
            f"actor_network: expected a head or a ProbabilisticTensorDictModule in it, got {actor}"
        )
    return found[-1]


def old_distribution(
    loss: PolicyLossModule, td: TensorDictBase, row_shape: torch.Size
) -> ActionDistribution:
    """Build the distribution that the KL starts from, free of gradients.

    It is that at collection, from the stored parameters alone, or with ``delay_actor`` that of the
    target parameters.

    Raises:
        KeyError: for a parameter that was not stored.
    """
    if loss.delay_actor:
        with (
            torch.no_grad(),
            loss.using("actor_network", loss.target_actor_network_params) as actor,
        ):
            dist = actor.get_dist(td.copy())
    else:
        todo = "the KL is taken from the policy at collection: store what the actor wrote"
        keys = stored_keys(loss.actor_network)
        for key in keys:
            require(td, key, todo)
        stored = td.select(*keys).detach()
        module = _last_module(loss.actor_network)
        # a head has a way to build it without its own parameters, which have moved on since
        dist = getattr(module, "stored_dist", module.get_dist)(stored)
    return as_action_distribution(dist, loss.action_keys, row_shape)


def leaf_kls(old: ActionDistribution, new: ActionDistribution, samples: int) -> TensorDictBase:
    r"""KL of every leaf, ``K_kl`` of shape ``[*B]``: exact where it has a closed form.

    .. math:: KL(p_{old} \,\|\, p_{new}) \approx
              \frac1S \sum_s \log p_{old}(a_s) - \log p_{new}(a_s), \quad a_s \sim p_{old}

    for a leaf that has none.

    Example:
        >>> normal = torch.distributions.Normal(torch.zeros(4), 1.0)
        >>> dist = ActionDistribution({"a": normal}, [4])
        >>> leaf_kls(dist, dist, 1)["a_kl"]
        tensor([0., 0., 0., 0.])
    """
    return old.kl(new, functools.partial(_kl, samples=samples))


def _kl(p: Distribution, q: Distribution, *, samples: int) -> Tensor:
    if _has_closed_form(p, q):
        return kl_divergence(p, q)
    with torch.no_grad():
        action, log_prob = draw_and_score(p, samples, reparameterize=False)
    return (log_prob - q.log_prob(action)).mean(0)


def _has_closed_form(p: Distribution, q: Distribution) -> bool:
    if isinstance(p, GatedLeaf) and isinstance(q, GatedLeaf):
        return _has_closed_form(p.base, q.base)
    return has_closed_form(p, q) or is_registered(p, q)
