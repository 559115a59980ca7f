"""Is the policy in the loss the one that acted?"""

from __future__ import annotations

import torch
from torch import Tensor

from tdheads.checks import rows_where
from tdheads.keys import NestedKey
from tdheads.losses.adapter import mask_fills
from tdheads.losses.policy import stored_log_probs
from tdheads.reduce import add
from tdheads.symptoms.batch import ERROR, ERRORS, NOTE, Batch, Symptom, Symptoms, told

# float32 sums in another order differ by less: another batch size, device or number of threads
ROUNDING = 1e-4


def check_policy(batch: Batch) -> Symptoms:
    """The policy can be built at the batch."""
    try:
        batch.rows(batch.dist.row_shape)  # the policy is built here, and kept
    except ERRORS as error:
        yield told(error)


def check_legal(batch: Batch) -> Symptoms:
    """Every stored action is one that the current policy may take under the stored mask."""
    for key, leaf in batch.dist.dists.items():
        try:
            score = batch.score(batch.dist, key)
        except ERRORS as error:
            yield told(error)
            continue
        bad = torch.isneginf(score) & batch.rows(leaf.batch_shape)
        if bad.any():
            action = batch.td.get(key)[bad][0].tolist()
            yield Symptom(
                ERROR,
                key,
                f"the action {action} in {rows_where(bad)} is illegal under the stored mask: its"
                " log-prob is -inf",
                "store the mask that the action was drawn with: not that of the next step, and not"
                " a buffer that the environment writes over",
            )


def check_ratio(batch: Batch) -> Symptoms:
    """With unchanged weights the ratio of every leaf is 1."""
    keys = batch.loss.action_keys
    try:
        stored = stored_log_probs(batch.loss, batch.clean, batch.dist)
    except ERRORS as error:
        yield told(error)
        return
    scores = [batch.score(batch.dist, key) for key in keys]
    if len(batch.loss.log_prob_keys) < len(keys):  # only that of the joint action was stored
        name = batch.loss.log_prob_keys[0]
        yield from _ratio(batch, name, add(scores), stored[name], None)
        return
    for key, score in zip(keys, scores, strict=True):
        yield from _ratio(batch, key, score, stored[key], key)


def _ratio(
    batch: Batch, name: NestedKey, new: Tensor, old: Tensor, leaf: NestedKey | None
) -> Symptoms:
    gap = torch.where(batch.rows(new.shape), (new - old).abs().nan_to_num(nan=torch.inf), 0)
    off = gap > 0
    if not off.any():
        return
    worst = gap.max().item()
    found = f"log w is up to {worst:.2g} in {rows_where(off)}, expected 0"
    if worst <= ROUNDING:
        yield Symptom(NOTE, name, found, "rounding: collected in another batch size or dtype")
        return
    yield Symptom(ERROR, name, found, _cause(batch, leaf, old, off, worst))


def _cause(batch: Batch, leaf: NestedKey | None, old: Tensor, off: Tensor, worst: float) -> str:
    """Say what makes a ratio differ from 1, as far as it can be told from the batch."""
    if not old.isfinite().all() or worst == torch.inf:
        return "not a number: look at the scale of the observation and of the weights"
    again = batch.policy(batch.clean)
    keys = batch.loss.action_keys if leaf is None else [leaf]
    if any((batch.score(again, k) != batch.score(batch.dist, k)).any() for k in keys):
        return "the network is random (dropout?): the loss needs loss.eval(), or no such layer"
    fills = mask_fills(batch.actor)
    if fills and leaf is not None:
        free = batch.clean.copy()
        for key, fill in fills.items():
            content = torch.as_tensor(fill, device=free.get(key).device).to(free.get(key).dtype)
            free.set(key, torch.zeros_like(free.get(key)) + content)
        unmasked = batch.score(batch.policy(free), leaf)
        if ((unmasked - old).abs() <= ROUNDING)[off].all():
            return "the stored log-probs are those without the mask: act with the head, mask=True"
    return (
        "the weights, the mask or the observation (did a transform or a normaliser move on?) are"
        " not those of the collection; diagnose before the first update"
    )
