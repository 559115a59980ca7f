"""The advantage: computed if it is not there, one number per row, normalised over valid rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.modules import set_recurrent_mode

from tdheads.checks import require, require_float, require_tensor, shape_error, show
from tdheads.keys import NestedKey, as_key, as_path
from tdheads.losses import functional as F
from tdheads.losses.buffers import move
from tdheads.running import shallow_copy

if TYPE_CHECKING:
    from tdheads.losses.module import PolicyLossModule


def with_advantage(loss: PolicyLossModule, tensordict: TensorDictBase) -> TensorDictBase:
    """Return a copy of the batch that holds the advantage and the value target.

    Raises:
        KeyError: for a missing advantage that cannot be computed.
    """
    td = shallow_copy(tensordict)
    if td.get(loss.tensor_keys.advantage, None) is not None:
        return td
    if loss.critic_network is None:
        todo = "a loss without a critic cannot compute it: run a value estimator first"
        require(td, loss.tensor_keys.advantage, todo)
    todo = f"run a value estimator, e.g. GAE, or store it for {show(loss.tensor_keys.advantage)}"
    for name in ("reward", "done"):  # terminated is done where it is not stored
        require(td, as_key(("next", getattr(loss.tensor_keys, name))), todo)
    estimate(loss, td)
    return td


def estimate(loss: PolicyLossModule, td: TensorDictBase) -> None:
    """Write the advantage and the value target, with the loss's critic and estimator.

    In training the target moves the statistics of ``advantage_norm``.
    """
    params = loss.critic_network_params.detach() if loss.functional else None
    targets = loss.target_critic_network_params if loss.functional else None
    with set_recurrent_mode(True):
        loss.value_estimator(td, params=params, target_params=targets)
    if loss.advantage_norm is not None and loss.training:
        target = td.get(loss.tensor_keys.value_target)
        valid = loss._valid(td)
        valid = loss._judged(valid, loss._acting(td, valid))
        rows = None if valid is None else valid.for_values(target.shape[:-1])
        move(loss.advantage_norm, target, rows)


def scaled_advantages(
    loss: PolicyLossModule, td: TensorDictBase, shape: torch.Size, valid: Tensor | None
) -> list[Tensor]:
    """Return the advantages as the surrogate uses them, ``[*B]``: one, or one per leaf."""
    return [
        _scaled(loss, key, require_float(td, key, _EACH), td, shape, valid)
        for key in advantage_keys(loss, td)
    ]


def _scaled(
    loss: PolicyLossModule,
    key: NestedKey,
    advantage: Tensor,
    td: TensorDictBase,
    shape: torch.Size,
    valid: Tensor | None,
) -> Tensor:
    # one advantage for a team, one ratio per agent
    team = len(shape) > td.batch_dims and advantage.shape == (*shape[:-1], 1)
    if not team and advantage.shape != (*shape, 1):
        raise _error(key, shape, advantage)
    rows = advantage.squeeze(-1)
    if loss.advantage_norm is not None:
        rows = rows / loss.advantage_norm.scale()
    elif loss.normalize_advantage:  # a team's once, before it is given to each agent
        counts = valid.any(-1) if team and valid is not None else valid
        rows = F.standardize(rows, counts, _excluded(loss, advantage.ndim))
    return rows.unsqueeze(-1).expand(shape) if team else rows


def _excluded(loss: PolicyLossModule, ndim: int) -> list[int]:
    """Return the dims that are kept apart, given for an entry of ``ndim`` dims, the last is 1."""
    for dim in loss.normalize_advantage_exclude_dims:
        if not -ndim <= dim < ndim:
            raise ValueError(
                f"normalize_advantage_exclude_dims: expected dims of the advantage, {-ndim} to"
                f" {ndim - 1}, got {dim}"
            )
    dims = [dim % ndim for dim in loss.normalize_advantage_exclude_dims]
    return [dim for dim in dims if dim < ndim - 1]


def advantage_keys(loss: PolicyLossModule, td: TensorDictBase) -> list[NestedKey]:
    """Return the entries of the advantage: one, or one per leaf."""
    key = as_key(loss.tensor_keys.advantage)
    if isinstance(td.get(key), Tensor):
        return [key]
    if loss.aggregate != "none":
        raise ValueError(
            f"{show(key)}: expected a tensor, got a tensordict; one advantage per leaf needs"
            " aggregate='none'"
        )
    return [(*as_path(key), *as_path(leaf)) for leaf in loss.action_keys]


def row_shape(loss: PolicyLossModule, td: TensorDictBase) -> torch.Size:
    """Return the batch dims of the action: those of its group, or of the advantage."""
    key = advantage_keys(loss, td)[0]
    advantage = require_tensor(td, key, _EACH)
    if advantage.ndim <= td.batch_dims:
        raise _error(key, td.batch_size, advantage)
    rows = advantage.shape[:-1]
    group = as_path(loss.action_keys[0])[:-1]
    nested = td.get(group, None) if group else None
    return nested.batch_size if nested is not None and nested.ndim > len(rows) else rows


_EACH = "give one advantage for each leaf, or one tensor for all"


def _error(key: NestedKey, rows: torch.Size, advantage: Tensor) -> ValueError:
    todo = (
        "one advantage per log-prob, with a trailing dim of size 1, advantage.unsqueeze(-1): a flat"
        " one would make an outer product"
    )
    return shape_error(key, (*rows, 1), advantage, todo)
