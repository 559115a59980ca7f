"""From stored actions to log-ratios: one number per row and leaf, checked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential
from torch import Tensor
from torch.distributions import Distribution

from tdheads.checks import eager, require_float, require_tensor, rows_where, shape_error, show
from tdheads.distributions import ActionDistribution, DependentDistribution
from tdheads.distributions.draw import deterministic
from tdheads.entries import read
from tdheads.heads.base import Head
from tdheads.keys import KL, NestedKey, suffixed
from tdheads.looks import Looks
from tdheads.losses.adapter import ForeignLeaf, as_action_distribution
from tdheads.losses.advantage import row_shape
from tdheads.losses.divergence import leaf_kls, old_distribution
from tdheads.losses.rows import Valid
from tdheads.reduce import add, sum_event

if TYPE_CHECKING:
    from tdheads.losses.module import PolicyLossModule


#: the lowest and the highest log-ratio
Bounds = tuple[Tensor, Tensor]
#: leaf -> a number per row; no tensordict, whose every entry costs as much as an operator
Leaves = Mapping[NestedKey, Tensor]


class Terms(NamedTuple):
    """What a surrogate is made of; ``[*B]`` each."""

    #: of the joint action, or of one leaf with ``aggregate="none"``
    log_ratio: Tensor
    advantage: Tensor
    #: log of a gradient-free weight of the row, ``None`` for 1
    log_weight: Tensor | None
    #: from the old policy to the new one, if the loss needs it
    kl: Tensor | None
    #: of the log-ratio, if the loss has any
    bounds: Bounds | None = None


class PolicyRows(NamedTuple):
    """What the policy terms need of every row; ``[*B]`` each."""

    dist: ActionDistribution
    #: leaf -> log-ratio; ``None`` if only the sum of the leaves was stored
    leaf_log_ratio: Leaves | None
    #: leaf -> log-weight, ``None`` for 1
    leaf_log_weight: Leaves | None
    #: the joint log-ratio, on which a clip acts
    log_ratio: Tensor
    #: log of a gradient-free weight of the row, ``None`` for 1
    log_weight: Tensor | None
    #: ``K_kl`` -> KL from the old policy, if the loss needs it
    kl: TensorDictBase | None
    #: of the log-ratio, if the loss has any
    bounds: Bounds | None
    valid: Tensor | None

    def leaf_terms(self, key: NestedKey, advantage: Tensor) -> Terms:
        """Return what the surrogate of one leaf is made of."""
        assert self.leaf_log_ratio is not None  # checked before
        weight = self.leaf_log_weight
        return Terms(
            self.leaf_log_ratio[key],
            advantage,
            None if weight is None else weight[key],
            None if self.kl is None else self.kl.get(suffixed(key, KL)),
            self.bounds,
        )


def policy_rows(loss: PolicyLossModule, td: TensorDictBase, valid: Valid | None) -> PolicyRows:
    """Score the stored actions under the current policy and compare with the stored log-probs."""
    shape = row_shape(loss, td)
    # before the actor writes its parameters over the stored ones
    old_dist = old_distribution(loss, td, shape) if loss.needs_kl else None
    looks = Looks() if eager() else None
    dist, new = _score(loss, td, None, valid, shape, looks)
    rows = None if valid is None else valid.for_rows(dist.row_shape)
    if dist.empty is not None:
        rows = ~dist.empty if rows is None else rows & ~dist.empty
    old = stored_log_probs(loss, td, dist)
    near = old
    if loss.delay_actor:
        with torch.no_grad():
            # on a copy: the target's parameters must not stand where the policy's are read
            near = _score(loss, td.copy(), loss.target_actor_network_params, valid, shape)[1]
    leaves = leaf_weights = None
    if len(loss.log_prob_keys) == len(loss.action_keys) or loss.delay_actor:
        leaves = {key: new[key] - near[key] for key in new}
        if loss.aggregate == "none":
            leaf_weights = _leaf_weights(loss, leaves, near, old)
    log_ratio = add(new.values()) - add(near.values()) if leaves is None else add(leaves.values())
    if looks is not None and dist.validates and not looks.settle(log_ratio):
        _check_legal(td, new)
    weight = add(near.values()) - add(old.values()) if loss.delay_actor else None
    weight = _capped(loss, weight, log_ratio)
    kl = None if old_dist is None else leaf_kls(old_dist, dist, loss.samples_mc_kl)
    return PolicyRows(dist, leaves, leaf_weights, log_ratio, weight, kl, loss._bounds(), rows)


def _leaf_weights(
    loss: PolicyLossModule, log_ratio: Leaves, near: Leaves, old: Leaves
) -> Leaves | None:
    weights = {}
    for key, ratio in log_ratio.items():
        weight = _capped(loss, near[key] - old[key] if loss.delay_actor else None, ratio)
        if weight is None:
            return None
        weights[key] = weight
    return weights


def _capped(loss: PolicyLossModule, weight: Tensor | None, log_ratio: Tensor) -> Tensor | None:
    """Lower the log-weight so that ratio times weight is at most ``max_importance_ratio``."""
    if loss.max_importance_ratio is None:
        return weight
    cap = loss.max_importance_ratio.log() - log_ratio.detach()
    return torch.minimum(torch.zeros_like(cap) if weight is None else weight, cap)


def _score(
    loss: PolicyLossModule,
    td: TensorDictBase,
    params: Any,
    valid: Valid | None,
    rows: torch.Size,
    looks: Looks | None = None,
) -> tuple[ActionDistribution, Leaves]:
    """Return the policy's distribution and the log-probs of the stored actions.

    ``looks`` gather those at what the distribution is built from.
    """
    leaves = loss.action_keys
    for key in leaves:
        if require_tensor(td, key, "store the actions that were taken").requires_grad:
            raise ValueError(
                f"{show(key)}: expected a stored action, got one that requires grad; collect under"
                " torch.no_grad(), or detach() the batch"
            )
    with loss.using("actor_network", params) as actor:
        dist = _build(actor, td, looks)
    if isinstance(dist, DependentDistribution) and looks is not None:
        looks.take()  # what is wrong with an irrelevant leaf is not seen in the joint log-prob
        looks = None
    dist = as_action_distribution(dist, leaves, rows)
    # what is wrong with a parameter is said before what is wrong with an action
    with looks or contextlib.nullcontext():
        return dist, {key: score_leaf(dist, key, td, valid) for key in dist.dists}


def _build(actor: Any, td: TensorDictBase, looks: Looks | None) -> Distribution:
    """Return ``actor.get_dist(td)``; what its networks look at themselves is not gathered."""
    usual = getattr(type(actor), "get_dist", None) is ProbabilisticTensorDictSequential.get_dist
    if looks is None or not (usual or isinstance(actor, Head)):
        return actor.get_dist(td)
    if isinstance(actor, Head):
        with looks:
            return actor.get_dist(td)
    found = actor.get_dist_params(td)
    with looks:
        return actor.build_dist_from_params(found)


def score_leaf(
    dist: ActionDistribution, key: NestedKey, td: TensorDictBase, valid: Valid | None
) -> Tensor:
    """Return the log-prob of the stored actions of a leaf, ``[*B]``.

    Raises:
        ValueError: for an action of the wrong shape.
    """
    leaf, action = dist.dists[key], read(td, key)
    shape = leaf.batch_shape + leaf.event_shape
    if action.shape != shape:
        raise shape_error(key, shape, action, "no dim of an action may be stray or missing")
    if valid is not None:  # an invalid row holds no action: score a legal one
        mask = valid.for_rows(leaf.batch_shape)
        mask = mask.reshape((*mask.shape, *[1] * len(leaf.event_shape)))
        action = torch.where(mask, action, deterministic(leaf).detach().to(action.dtype))
    return leaf.log_prob(action)


def stored_log_probs(
    loss: PolicyLossModule, td: TensorDictBase, dist: ActionDistribution
) -> Leaves:
    """Return the log-probs at collection, by leaf, or by its key where only the sum was stored.

    Raises:
        KeyError, ValueError: for a missing one, one that requires grad, one of the wrong shape.
    """
    leaves, keys = loss.action_keys, loss.log_prob_keys
    names = leaves
    if len(keys) != len(leaves):
        if len(keys) > 1:
            raise ValueError(f"sample_log_prob: expected one key per leaf {leaves}, got {keys}")
        names = keys  # only the sum over the leaves was stored
    out = {}
    for name, key, action in zip(names, keys, leaves, strict=False):
        todo = "store the log-probs that the actor wrote (return_log_prob=True)"
        stored = require_float(td, key, todo)
        if stored.requires_grad:
            raise ValueError(
                f"{show(key)}: expected a stored log-prob, got one that requires grad; collect"
                " under torch.no_grad(), or detach() the batch"
            )
        leaf = dist.dists[action]
        shape, event = leaf.batch_shape, leaf.event_shape
        if stored.shape == shape + event and isinstance(leaf, ForeignLeaf):
            stored = sum_event(stored, len(event))
        if stored.shape != shape:
            todo = "one log-prob per row: sum it over the dims of the action before storing it"
            raise shape_error(key, shape, stored, todo)
        out[name] = stored
    return out


def _check_legal(td: TensorDictBase, log_probs: Leaves) -> None:
    for key, log_prob in log_probs.items():
        bad = torch.isneginf(log_prob)
        if bad.any():
            action = td.get(key)[bad][0].tolist()
            raise ValueError(
                f"{show(key)}: the stored action {action} in {rows_where(bad)} is illegal under the"
                " stored mask; store the mask that the action was drawn with, next to the action"
            )
