"""The advantage: computed if it is not there, one number per row, normalised over valid rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.modules import set_recurrent_mode

from tdheads.checks import require, require_float, require_tensor, shape_error, show
from tdheads.entries import read, shallow_copy
from tdheads.keys import NestedKey, as_key, as_path
from tdheads.losses import functional as F
from tdheads.losses.buffers import move
from tdheads.losses.rows import SHIFTED_VALID, Valid, both, clean_inputs, find_valid

if TYPE_CHECKING:
    from tdheads.losses.module import PolicyLossModule


def with_advantage(loss: PolicyLossModule, tensordict: TensorDictBase) -> TensorDictBase:
    """Return a copy of the batch that holds the advantage and the value target.

    Raises:
        KeyError: for a missing advantage that cannot be computed.
    """
    td = shallow_copy(tensordict)
    if read(td, loss.tensor_keys.advantage) is not None:
        return td
    if loss.critic_network is None:
        todo = "a loss without a critic cannot compute it: run a value estimator first"
        require(td, loss.tensor_keys.advantage, todo)
    estimate(loss, td)
    return td


def estimate(
    loss: PolicyLossModule, td: TensorDictBase, source: TensorDictBase | None = None
) -> None:
    """Write the advantage and the value target, with the loss's critic and estimator.

    In training the target moves the statistics of ``advantage_norm``.

    Raises:
        KeyError: for a missing reward or done.
    """
    _write_estimates(loss, td if source is None else source, td)
    if loss.advantage_norm is not None and loss.training:
        target = td.get(loss.tensor_keys.value_target)
        valid = loss._valid(td)
        valid = loss._judged(valid, loss._acting(td, valid))
        rows = None if valid is None else valid.for_values(target.shape[:-1])
        move(loss.advantage_norm, target, rows)


def _run_estimator(loss: PolicyLossModule, batch: TensorDictBase) -> None:
    keys = loss.value_estimator.tensor_keys
    todo = f"run a value estimator, e.g. GAE, or store it for {show(loss.tensor_keys.advantage)}"
    for key in (keys.reward, keys.done):  # terminated is done where it is not stored
        require(batch, _next(key), todo)
    params = loss.critic_network_params.detach() if loss.functional else None
    targets = loss.target_critic_network_params if loss.functional else None
    with set_recurrent_mode(True):
        loss.value_estimator(batch, params=params, target_params=targets)


def _harmless(loss: PolicyLossModule, td: TensorDictBase) -> TensorDictBase:
    """Let what rows that do not count hold stay out of the advantages of those that do.

    An estimator runs backwards over time, and multiplies what comes after an end by 0: nan stays.
    """
    keys = loss.tensor_keys
    acting = loss._acting(td, loss._valid(td), required=False)  # the forward asks for it
    if acting is None:
        return td
    inputs = [as_key(key) for key in (*loss.critic_network.in_keys, keys.value)]
    # VTrace looks at the policy too
    td = clean_inputs(td, acting, [*inputs, *map(as_key, loss.actor_network.in_keys)])
    after = acting._replace(group=("next", *acting.group))
    td = clean_inputs(td, after, [_next(keys.reward)])
    alive = None if keys.alive is None else find_valid(td, (_next(keys.alive),))
    if alive is not None:
        after = both(after, alive, _next(keys.alive))
    td = clean_inputs(td, after, map(_next, inputs))
    if alive is not None and loss.alive_in_critic:
        # no value was learnt of what an agent sees when it is dead: its death is its end
        for name in ("done", "terminated"):
            key = _next(getattr(keys, name))
            signal = td.get(key, None)
            if signal is not None:
                ends = ~alive.for_values(signal.shape[:-1])
                td.set(key, signal | ends.unsqueeze(-1))
    return td


def _write_estimates(loss: PolicyLossModule, source: TensorDictBase, td: TensorDictBase) -> None:
    """Run the estimator on a copy of ``source``, and write into ``td`` what it wrote there.

    What else the copy holds, such as harmless content of rows that do not count, stays there. The
    rows that an estimator which looked past the end of an episode leaves out are written beside the
    action: they differ between groups.
    """
    batch = _harmless(loss, shallow_copy(source))
    known = set(batch.keys(True, True))
    _run_estimator(loss, batch)
    keys = loss.tensor_keys
    own = [as_path(key) for key in (keys.advantage, keys.value_target, keys.value)]
    own += [("next", *own[-1]), (SHIFTED_VALID,)]
    for key in batch.keys(True, True):
        path = as_path(key)
        if path == (SHIFTED_VALID,):
            group = as_path(loss.action_keys[0])[:-1]
            td.set(as_key((*group, SHIFTED_VALID)), _for_group(batch.get(key), td, group))
        elif key not in known or any(path[: len(begin)] == begin for begin in own):
            td.set(key, batch.get(key))


def _for_group(valid: Tensor, td: TensorDictBase, group: tuple[str, ...]) -> Tensor:
    nested = td.get(group, None) if group else None
    if nested is None or nested.batch_dims == td.batch_dims:
        return valid
    if valid.numel() == nested.numel():
        return valid.reshape(nested.batch_size)
    return Valid(valid.reshape(td.batch_size)).for_values(nested.batch_size)


def _next(key: NestedKey) -> NestedKey:
    return as_key(("next", *as_path(key)))


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
    if isinstance(read(td, key), Tensor):
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
