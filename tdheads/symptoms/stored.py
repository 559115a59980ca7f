"""Is what is stored there, and a number?"""

from __future__ import annotations

import difflib

from torch import Tensor

from tdheads.checks import rows_where
from tdheads.keys import MASK, NestedKey, as_key, as_path, suffixed
from tdheads.losses.adapter import mask_fills
from tdheads.losses.divergence import stored_keys
from tdheads.symptoms.batch import ERROR, ERRORS, WARNING, Batch, Symptom, Symptoms, told


def check_keys(batch: Batch) -> Symptoms:
    """Every entry that the loss reads is there."""
    td, wanted = batch.td, keys_read(batch)
    missing = [key for key in wanted if td.get(key, None) is None]
    there = [as_key(key) for key in td.keys(include_nested=True, leaves_only=True)]
    others = [str(key) for key in there if key not in wanted]
    for key in missing:
        near = difflib.get_close_matches(str(key), others, 1)
        also = f", but {near[0]} is" if near else ""
        yield Symptom(ERROR, key, f"not in the batch{also}", wanted[key])
    if not missing:
        try:
            batch.valid  # noqa: B018  # a validity mask has to fit the batch
        except ERRORS as error:
            yield told(error)


def keys_read(batch: Batch) -> dict[NestedKey, str]:
    """Return every entry that the loss reads, and what to do if it is missing."""
    loss = batch.loss
    wanted: dict[NestedKey, str] = {}
    critic = [] if loss.critic_network is None else loss.critic_network.in_keys
    for key in (*loss.actor_network.in_keys, *critic):
        wanted[as_key(key)] = "a network reads it: keep it in the batch"
    for key in mask_fills(batch.actor):
        wanted[key] = "the mask that the action was drawn with has to be stored with the action"
    for key in loss.action_keys:
        wanted[key] = "store the action, or name it with set_keys(action=...)"
    for key in loss.log_prob_keys:
        wanted[key] = "store the log-prob that the actor wrote (return_log_prob=True)"
    if loss.needs_kl and not loss.delay_actor:
        for key in stored_keys(batch.actor):
            wanted[key] = "the KL is taken from the policy at collection: store it too"
    if loss.loss_mask_key not in (None, "auto"):
        wanted[as_key(loss.loss_mask_key)] = "it is the loss_mask_key: store it, or set it to None"
    if loss.tensor_keys.alive is not None:
        wanted[as_key(loss.tensor_keys.alive)] = "it says which agents act: store it too"
    return wanted | _keys_of_advantage(batch)


def _keys_of_advantage(batch: Batch) -> dict[NestedKey, str]:
    loss, keys = batch.loss, batch.loss.tensor_keys
    if batch.td.get(keys.advantage, None) is not None:
        todo = "run a value estimator, e.g. GAE, on the batch"
        targets = [] if loss.critic_coeff is None else [as_key(keys.value_target)]
        return dict.fromkeys([as_key(keys.advantage), *targets], todo)
    if loss.critic_network is None:
        todo = "run a value estimator: a loss without a critic cannot compute it"
        return {as_key(keys.advantage): todo}
    todo = "the advantage is not there and is computed from it"
    return {as_key(("next", key)): todo for key in (keys.reward, keys.done)}


def check_mask(batch: Batch) -> Symptoms:
    """A mask that lies beside the action is one that the head was built with."""
    td = batch.td
    for head in batch.actor.modules():
        shapes = getattr(head, "mask_shapes", ())
        if not shapes or getattr(head, "mask_key", "") is not None:
            continue
        key = suffixed(head.action_key, MASK)
        mask, action = td.get(key, None), td.get(head.action_key)
        rows = action.shape[: action.ndim - len(head.event_shape)]
        if isinstance(mask, Tensor) and mask.shape in [(*rows, *shape) for shape in shapes]:
            found = f"in the batch, but the head of {head.action_key!r} was built without a mask"
            todo = "build it with mask=True, or leave the entry out if all is legal"
            yield Symptom(WARNING, key, found, todo)


def check_nan(batch: Batch) -> Symptoms:
    """Nothing that is read is nan, nor is a weight."""
    td, valid = batch.td, batch.valid
    read = [as_path(key) for key in keys_read(batch)]
    for key in td.keys(include_nested=True, leaves_only=True):
        value, path = td.get(key), as_path(key)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        if not any(path[: len(prefix)] == prefix for prefix in read):
            continue
        bad = _in_rows(value.isnan(), td.batch_dims)
        counts = None if valid is None else valid.for_entry(key, value, rowwise=True)
        if counts is not None:  # what a padded row holds does not matter
            bad = _in_rows(value.isnan() & counts, td.batch_dims)
        if bad.any():
            todo = "look for where it is written; a row that is padding needs a validity mask"
            yield Symptom(ERROR, as_key(key), f"nan in {rows_where(bad)}", todo)
    for name, param in batch.loss.named_parameters():
        if param.isnan().any():
            todo = "an update made it so: clip gradients, lower the learning rate, start again"
            yield Symptom(ERROR, name, f"nan in {int(param.isnan().sum())} weights", todo)


def _in_rows(bad: Tensor, ndim: int) -> Tensor:
    return bad.flatten(ndim).any(-1) if bad.ndim > ndim else bad
