"""From stored actions to log-ratios: one number per row and leaf, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdheads.checks import eager, require, rows_where, shape_error, show
from tdheads.distributions import ActionDistribution
from tdheads.keys import LOG_PROB, NestedKey, suffixed
from tdheads.losses.adapter import as_action_distribution
from tdheads.losses.rows import valid_for
from tdheads.reduce import sum_event, sum_leaves

if TYPE_CHECKING:
    from tdheads.losses.module import PolicyLossModule


class PolicyRows(NamedTuple):
    """What the policy terms need of every row; ``[*B]`` each."""

    dist: ActionDistribution
    #: ``K_log_prob`` -> log-ratio of the leaf; ``None`` if only the sum of the leaves was stored
    leaf_log_ratio: TensorDictBase | None
    #: the joint log-ratio, on which a clip acts
    log_ratio: Tensor
    #: log of a gradient-free weight of the row, ``None`` for 1
    log_weight: Tensor | None
    valid: Tensor | None


def policy_rows(loss: PolicyLossModule, td: TensorDictBase, valid: Tensor | None) -> PolicyRows:
    """Score the stored actions under the current policy and compare with the stored log-probs."""
    dist, new = _score(loss, td, None)
    row_shape = next(iter(dist.dists.values())).batch_shape
    valid = valid_for(valid, row_shape)
    if dist.empty is not None:
        valid = ~dist.empty if valid is None else valid & ~dist.empty
    if eager() and dist.validates:
        _check_legal(td, new)
    old = _stored_log_probs(loss, td, dist)
    near, log_weight = old, None
    if loss.delay_actor:
        with torch.no_grad():
            near = _score(loss, td, loss.target_actor_network_params)[1]
        log_weight = sum_leaves(near) - sum_leaves(old)
    leaves = new - near if set(near.keys(True, True)) == set(new.keys(True, True)) else None
    log_ratio = sum_leaves(new) - sum_leaves(near) if leaves is None else sum_leaves(leaves)
    if loss.max_importance_ratio is not None:
        cap = loss.max_importance_ratio.log() - log_ratio.detach()
        log_weight = torch.minimum(torch.zeros_like(cap) if log_weight is None else log_weight, cap)
    return PolicyRows(dist, leaves, log_ratio, log_weight, valid)


def advantage_rows(loss: PolicyLossModule, td: TensorDictBase, shape: torch.Size) -> Tensor:
    """Return the advantage as one number per row of the log-ratio (``shape``)."""
    advantage = td.get(loss.tensor_keys.advantage)
    if advantage.shape == (*shape, 1):
        return advantage.squeeze(-1)
    if len(shape) > td.batch_dims and advantage.shape == (*shape[:-1], 1):
        return advantage.expand(shape)  # one advantage for a team, one ratio per agent
    todo = "one advantage per log-prob, with a trailing dim of size 1: advantage.unsqueeze(-1)"
    raise shape_error(loss.tensor_keys.advantage, (*shape, 1), advantage, todo)


def _score(
    loss: PolicyLossModule, td: TensorDictBase, params: Any
) -> tuple[ActionDistribution, TensorDictBase]:
    """Return the policy's distribution and the log-probs of the stored actions."""
    with loss.using("actor_network", params) as actor:
        dist = actor.get_dist(td)
    # the loss's own rows are those of the advantage; only foreign leaves need to be told
    rows = td.get(loss.tensor_keys.advantage).shape[:-1]
    dist = as_action_distribution(dist, loss.action_keys, rows)
    for key in dist.dists:
        if require(td, key, "store the actions that were taken").requires_grad:
            raise ValueError(f"{show(key)}: expected a stored action, got one that requires grad")
    log_probs = dist.log_prob(td)
    for key, leaf in dist.dists.items():
        log_prob = log_probs.get(suffixed(key, LOG_PROB))
        if log_prob.shape != leaf.batch_shape:
            todo = (
                f"its log-prob has shape {list(log_prob.shape)}: no dim of an action may be stray"
            )
            raise shape_error(key, leaf.batch_shape + leaf.event_shape, td.get(key), todo)
    return dist, log_probs


def _stored_log_probs(
    loss: PolicyLossModule, td: TensorDictBase, dist: ActionDistribution
) -> TensorDictBase:
    """Return the log-probs at collection, named as the current ones where there is one per leaf."""
    leaves = list(dist.dists)
    names: list[NestedKey] = [suffixed(leaf, LOG_PROB) for leaf in leaves]
    keys = loss.log_prob_keys
    if len(keys) != len(leaves):
        if len(keys) > 1:
            raise ValueError(f"sample_log_prob: expected one key per leaf {leaves}, got {keys}")
        names = keys
    elif len(keys) > 1 and set(keys) == set(names):
        keys = names  # the actor may list its leaves in another order
    out = TensorDict({}, td.batch_size)
    for name, key, leaf in zip(names, keys, leaves, strict=False):
        stored = require(td, key, "store the log-probs that the actor wrote (return_log_prob=True)")
        if stored.requires_grad:
            raise ValueError(f"{show(key)}: expected a stored log-prob, got one that requires grad")
        shape, event = dist[leaf].batch_shape, dist[leaf].event_shape
        if stored.shape == shape + event and not hasattr(dist[leaf], "names"):
            stored = sum_event(stored, len(event))
        if stored.shape != shape:
            todo = "one log-prob per row: sum it over the dims of the action before storing it"
            raise shape_error(key, shape, stored, todo)
        out.set(name, stored)
    return out


def _check_legal(td: TensorDictBase, log_probs: TensorDictBase) -> None:
    if not torch.isneginf(sum_leaves(log_probs).detach()).any():
        return
    for name in log_probs.keys(True, True):
        bad = torch.isneginf(log_probs.get(name))
        if bad.any():
            key = name[: -len(LOG_PROB)] if isinstance(name, str) else name
            key = (*name[:-1], name[-1][: -len(LOG_PROB)]) if isinstance(name, tuple) else key
            action = td.get(key)[bad][0].tolist()
            raise ValueError(
                f"{show(key)}: the stored action {action} in {rows_where(bad)} is illegal under the"
                " stored mask; store the mask that the action was drawn with, next to the action"
            )
