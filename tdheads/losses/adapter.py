"""Turns whatever an actor returns into one :class:`ActionDistribution`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import CompositeDistribution, set_composite_lp_aggregate
from torch import Tensor
from torch.distributions import Distribution, Independent
from torchrl.modules import MaskedOneHotCategorical, OneHotCategorical, OneHotOrdinal

from tdheads.distributions import ActionDistribution, IndependentLeaf
from tdheads.distributions.closed_forms import look_up
from tdheads.keys import ENTROPY, LOG_PROB, NestedKey, as_key, suffixed
from tdheads.reduce import sum_event

ONE_HOT = (OneHotCategorical, MaskedOneHotCategorical, OneHotOrdinal)


def as_action_distribution(
    dist: Distribution, action_keys: Sequence[NestedKey], row_shape: torch.Size
) -> ActionDistribution:
    """Return ``dist`` as leaf -> distribution, the only form that a loss deals with.

    A head's own distribution keeps its shape. The leaf of another library whose event dims are not
    closed (a plain ``Normal`` of shape ``[*B, A]``) is closed down to the rows of the batch.

    Raises:
        ValueError: for action keys that are not the actor's leaves.

    Example:
        >>> normal = torch.distributions.Normal(torch.zeros(4, 3), 1.0)
        >>> as_action_distribution(normal, ["action"], torch.Size([4]))["action"].event_shape
        torch.Size([3])
    """
    if isinstance(dist, CompositeDistribution):
        if set(dist.dists) != set(action_keys):
            raise ValueError(
                f"action: expected the leaves {list(dist.dists)} of the actor, got"
                f" {list(action_keys)}; set_keys(action=...) names them"
            )
        if isinstance(dist, ActionDistribution):
            return dist
        leaves = dict(dist.dists)
    elif len(action_keys) > 1:
        raise ValueError(
            f"actions {list(action_keys)}: expected a composite distribution, got a"
            f" {type(dist).__name__}; use a CompositeHead, or set one action key"
        )
    else:
        leaves = {action_keys[0]: dist}
    return ActionDistribution({k: _close(d, len(row_shape)) for k, d in leaves.items()}, row_shape)


class ForeignLeaf(IndependentLeaf):
    """A distribution of another library, closed by the loss: its stored log-prob may be open."""


look_up(ForeignLeaf)


def _close(dist: Distribution, row_ndim: int) -> Distribution:
    if getattr(dist, "closed", False):
        return dist
    leaf = ForeignLeaf(dist, max(len(dist.batch_shape) - row_ndim, 0))
    if isinstance(dist, ONE_HOT) and not dist.event_shape:
        # TorchRL's one-hot distributions draw [*B, n] and say that an event is a scalar
        leaf._event_shape = torch.Size([*leaf.event_shape, dist.logits.shape[-1]])
    return leaf


def leaf_entropies(dist: ActionDistribution, samples: int) -> dict[NestedKey, Tensor]:
    """Entropy by leaf, by a Monte-Carlo mean over ``samples`` draws where it has no formula.

    Example:
        >>> normal = torch.distributions.Normal(torch.zeros(4), 1.0)
        >>> leaf_entropies(ActionDistribution({"a": normal}, [4]), 1)["a"][0]
        tensor(1.4189)
    """
    known = {key: _has_entropy(leaf) for key, leaf in dist.dists.items()}
    if type(dist).entropy is not ActionDistribution.entropy and all(known.values()):
        entropies = dist.entropy()  # leaves that depend on each other
        return {key: entropies.get(suffixed(key, ENTROPY)) for key in known}
    return {
        key: leaf.entropy() if known[key] else _sampled_entropy(leaf, samples)
        for key, leaf in dist.dists.items()
    }


def _has_entropy(dist: Distribution) -> bool:
    if isinstance(dist, Independent):
        return _has_entropy(dist.base_dist)
    return type(dist).entropy is not Distribution.entropy


def _sampled_entropy(dist: Distribution, samples: int) -> Tensor:
    return -draw_and_score(dist, samples, reparameterize=True)[1].mean(0)


def draw_and_score(
    dist: Distribution, samples: int, *, reparameterize: bool
) -> tuple[Tensor, Tensor]:
    """Draw ``samples`` actions of a leaf and score them: ``[S, *B, *event]`` and ``[S, *B]``.

    Example:
        >>> normal = torch.distributions.Normal(torch.zeros(4), 1.0)
        >>> draw_and_score(normal, 3, reparameterize=False)[1].shape
        torch.Size([3, 4])
    """
    shape = torch.Size([samples])
    if isinstance(dist, ForeignLeaf):
        # a squashed draw is scored from its latent, which cannot be had back from the action
        base, ndim = dist.base_dist, dist.reinterpreted_batch_ndims
        reparameterize = reparameterize and base.has_rsample
        together = "rsample_and_log_prob" if reparameterize else "sample_and_log_prob"
        if hasattr(base, together):
            action, log_prob = getattr(base, together)(shape)
        else:
            action = base.rsample(shape) if reparameterize else base.sample(shape)
            log_prob = base.log_prob(action)
        return action, sum_event(log_prob, ndim)
    draws = dist.rsample(shape) if reparameterize and dist.has_rsample else dist.sample(shape)
    return draws, dist.log_prob(draws)


def actor_keys(actor: Any) -> tuple[list[NestedKey], list[NestedKey]]:
    """Return the action keys and the log-prob keys that an actor writes.

    Modules of tensordict answer only under the ``set_composite_lp_aggregate`` they were built with,
    so they are asked under it.

    Example:
        >>> from tdheads import CategoricalHead
        >>> actor_keys(CategoricalHead("action", n=2))
        (['action'], ['action_log_prob'])
    """
    actions = [as_key(key) for key in getattr(actor, "dist_sample_keys", ["action"])]
    if not hasattr(type(actor), "log_prob_keys"):
        return actions, [suffixed(key, LOG_PROB) for key in actions]
    flags = {getattr(module, "_composite_lp_aggreate_at_init", None) for module in actor.modules()}
    with set_composite_lp_aggregate(True in flags):
        return actions, [as_key(key) for key in actor.log_prob_keys]


def mask_fills(actor: Any) -> dict[NestedKey, float | Tensor]:
    """Return the masks that the heads of an actor read, and what makes a row of them legal.

    Example:
        >>> from tdheads import CategoricalHead
        >>> mask_fills(CategoricalHead("action", n=2, mask=True))
        {'action_mask': 1}
    """
    heads = [module for module in actor.modules() if getattr(module, "mask_key", None)]
    return {head.mask_key: head.mask_fill for head in heads}
