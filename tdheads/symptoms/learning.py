"""Is there something to learn from, and does it reach the weights?"""

from __future__ import annotations

from typing import Any

import torch

from tdheads.checks import rows_where
from tdheads.distributions import GatedLeaf
from tdheads.losses.adapter import as_action_distribution
from tdheads.losses.advantage import advantage_keys, row_shape
from tdheads.symptoms.batch import ERROR, ERRORS, NOTE, WARNING, Batch, Symptom, Symptoms, told


def check_empty(batch: Batch) -> Symptoms:
    """Say how many rows count, and how many have nothing to choose."""
    dist = batch.dist
    rows = batch.rows(dist.row_shape)
    if not rows.any():
        todo = f"look at loss.loss_mask_key={batch.loss.loss_mask_key!r}"
        yield Symptom(ERROR, None, "no valid row", todo)
        return
    for key, leaf in dist.dists.items():
        empty = getattr(leaf, "empty", None)
        if empty is not None and (empty & rows).any():
            why = "not relevant" if isinstance(leaf, GatedLeaf) else "nothing to choose"
            found = f"{why} in {rows_where(empty & rows)}"
            yield Symptom(NOTE, key, found, "these rows count nothing for this leaf")
    if dist.empty is not None and bool(dist.empty[rows].all()):
        todo = "no policy gradient comes from this batch: look at the mask"
        yield Symptom(ERROR, None, "no row has anything to choose", todo)


def check_advantage(batch: Batch) -> Symptoms:
    """The advantage has one number per row, on a sound scale."""
    loss, td, valid = batch.loss, batch.clean, batch.valid
    for key in advantage_keys(loss, td):
        values = td.get(key).squeeze(-1)
        if valid is not None:
            values = values[valid.for_values(values.shape)]
        values = values.flatten()
        if len(values) < 2:
            yield Symptom(NOTE, key, f"{len(values)} valid rows", "normalisation needs two")
            continue
        std, mean = values.std().item(), values.mean().item()
        if std == 0:
            todo = "is there a reward? an estimator on a batch of one step has nothing to compare"
            yield Symptom(WARNING, key, f"the same in all rows, {mean:.3g}", todo)
        elif not (loss.normalize_advantage or loss.advantage_norm or 0.1 <= std <= 10):
            todo = "the step size depends on it: normalize_advantage=True, or scale the reward"
            yield Symptom(WARNING, key, f"standard deviation {std:.3g}", todo)


def check_gradient(batch: Batch) -> Symptoms:
    """Every leaf moves a weight, and every weight of the actor that can is moved by a leaf."""
    loss = batch.loss
    named = [(n, p) for n, p in loss.named_parameters() if p.requires_grad]
    with torch.enable_grad(), loss.over_time("actor_network") as actor:
        dist = actor.get_dist(batch.clean.copy())
        dist = as_action_distribution(dist, loss.action_keys, row_shape(loss, batch.clean))
    moved: set[str] = set()
    for key, leaf in dist.dists.items():
        score = batch.score(dist, key)
        # signs, so that the gradients of all rows do not happen to cancel
        signs = torch.randint(0, 2, score.shape, device=score.device) * 2.0 - 1
        total = torch.where(batch.rows(score.shape) & score.isfinite(), signs * score, 0).sum()
        grads: tuple[Any, ...] = (None,) * len(named)
        if total.requires_grad:
            grads = torch.autograd.grad(
                total, [p for _, p in named], retain_graph=True, allow_unused=True
            )
        mine = {n for (n, _), g in zip(named, grads, strict=True) if g is not None and g.any()}
        moved |= mine
        if not mine:
            empty = getattr(leaf, "empty", None)
            never = empty is not None and bool(empty.all())
            todo = "one legal choice in every row? frozen weights? parameters without a gradient?"
            if never:
                todo = "it is never relevant in this batch"
            yield Symptom(NOTE if never else WARNING, key, "no weight gets a gradient", todo)
    idle = [n for n, _ in named if n.startswith("actor_network") and n not in moved]
    if idle and moved:
        todo = "no stored action of this batch depends on them"
        yield Symptom(NOTE, None, f"no gradient for the weights {', '.join(idle)}", todo)


def check_forward(batch: Batch) -> Symptoms:
    """The loss runs, and its terms are finite."""
    try:
        out = batch.loss(batch.td.copy())
    except ERRORS as error:
        yield told(error)
        return
    terms = [name for name in out.keys() if isinstance(name, str) and name.startswith("loss_")]
    for name in terms:
        if not out.get(name).isfinite().all():
            yield Symptom(ERROR, name, "not finite", "look at the figures of loss(td)")
