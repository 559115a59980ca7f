"""The losses other than the clipped one in plain PyTorch, each with the figures that it reports."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.leaves import sum_of
from benchmarks.reference import clip_loss

Tensors = Sequence[Tensor]


def policy_loss(
    name: str,
    log_probs: Tensors,
    entropies: Tensors,
    old: Tensors,
    advantage: Tensor,
    kls: Tensors = (),
    *,
    epsilon: float = 0.2,
    beta: float = 1.0,
    entropy_coeff: float = 0.01,
) -> dict[str, Tensor]:
    """Objective, entropy bonus and figures; all `[*B]` but the advantage `[*B, 1]`."""
    if name == "clip":
        return clip_loss(log_probs, entropies, old, advantage, entropy_coeff=entropy_coeff)
    advantage = advantage.squeeze(-1)
    leaf_ratios = [new - stored for new, stored in zip(log_probs, old, strict=True)]
    log_ratio, entropy = sum_of(leaf_ratios), sum_of(entropies)
    ratio = log_ratio.clamp(-20, 20).exp()
    gain = ratio * advantage
    out = {}
    if name == "spo":
        gain = gain - advantage.abs() / (2 * epsilon) * (ratio - 1).square()
    if name == "klpen":
        kl = sum_of(kls)
        gain = gain - beta * kl
        out["kl"] = kl.detach().mean()
    out["loss_objective"] = -gain.mean()
    out["loss_entropy"] = -entropy_coeff * entropy.mean()
    with torch.no_grad():
        out["entropy"], out["kl_approx"] = entropy.mean(), -log_ratio.mean()
        for leaf, (leaf_ratio, leaf_entropy) in enumerate(zip(leaf_ratios, entropies, strict=True)):
            out[f"kl_approx_{leaf}"] = -leaf_ratio.mean()
            out[f"entropy_{leaf}"] = leaf_entropy.mean()
        rows = log_ratio.flatten()
        ess = 2 * rows.logsumexp(0) - (2 * rows).logsumexp(0)
        out["ESS"] = ess.exp() / rows.numel()
        out["max_ratio"], out["mean_ratio"] = ratio.max(), ratio.mean()
        out["ratio_clamped"] = (log_ratio.abs() > 20).sum()
    return out
