"""The references of the benchmarks: what a user would write by hand in plain PyTorch.

Same networks, same numbers: log-probs and entropies of masked and normal leaves, the clipped
surrogate with its ratio clamped to exp(+-20), the entropy bonus, the smooth L1 loss of the critic,
and every figure that a loss of tdheads writes (the entropy and the approximate KL of each leaf and
of all, clip fraction, effective sample size, largest and mean ratio, clamped ratios, explained
variance). Left out is what a script does without: keys, shapes, checks of any kind, networks with
parameters from elsewhere, rows that do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_SCALE = 0.01
SOFTPLUS_BIAS = math.log(math.expm1(1 - MIN_SCALE))  # a raw scale of 0 is a scale of 1


# ---- leaves


def masked_log_probs(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Log-probs of legal choices, `-inf` elsewhere: `[*B, n]`."""
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    return logits.log_softmax(-1)


def choice(log_probs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of the action and entropy, `[*B]`."""
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    terms = log_probs.exp() * log_probs.masked_fill(log_probs == -math.inf, 0)
    return log_prob, -terms.sum(-1)


def positive(raw: Tensor) -> Tensor:
    """The scale that `biased_softplus_1.0` gives."""
    return (F.softplus(raw + SOFTPLUS_BIAS) + MIN_SCALE).clamp_min(1e-4)


def normal(loc: Tensor, scale: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of the action and entropy of independent normals, `[*B]`."""
    log_scale = scale.log()
    error = (action - loc) ** 2 / (2 * scale**2)
    log_prob = -(error + log_scale + math.log(math.sqrt(2 * math.pi))).sum(-1)
    return log_prob, (0.5 + 0.5 * math.log(2 * math.pi) + log_scale).sum(-1)


def loop_over_dimensions(
    logits: Tensor, nvec: Sequence[int], mask: Tensor | None, action: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of several choices, one dimension after the other."""
    masks = [None] * len(nvec) if mask is None else mask.split(list(nvec), -1)
    scored = [
        choice(masked_log_probs(part, legal), taken)
        for part, legal, taken in zip(
            logits.split(list(nvec), -1), masks, action.unbind(-1), strict=True
        )
    ]
    log_probs, entropies = zip(*scored, strict=True)
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


# ---- an actor of two masked choices and a continuous leaf


class HybridActor(nn.Module):
    """Backbone and one linear layer; parameters of the leaves kind, target and force."""

    def __init__(self, body: nn.Module, linear: nn.Linear, sizes: Sequence[int]) -> None:
        super().__init__()
        self.body, self.linear, self.sizes = body, linear, list(sizes)

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of kind and target, loc and raw scale of force."""
        return self.linear(self.body(obs)).split(self.sizes, -1)

    def score(self, batch: Mapping[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the log-prob of the stored action and the entropy of each leaf."""
        kind, target, loc, raw = self(batch["observation"])
        scored = [
            choice(masked_log_probs(kind, batch["kind_mask"]), batch["kind"]),
            choice(masked_log_probs(target, batch["target_mask"]), batch["target"]),
            normal(loc, positive(raw), batch["force"]),
        ]
        return [s[0] for s in scored], [s[1] for s in scored]

    @torch.no_grad()
    def act(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Draw an action of every leaf by the Gumbel-max rule or from a normal, and score it."""
        kind, target, loc, raw = self(batch["observation"])
        out = {}
        for name, logits in (("kind", kind), ("target", target)):
            log_probs = masked_log_probs(logits, batch[name + "_mask"])
            noise = torch.empty_like(log_probs).exponential_().log()
            out[name] = action = (log_probs - noise).argmax(-1)
            out[name + "_log_prob"] = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        scale = positive(raw)
        out["force"] = action = loc + scale * torch.randn_like(loc)
        out["force_log_prob"] = normal(loc, scale, action)[0]
        return out


# ---- the loss


def clip_loss(
    log_probs: Sequence[Tensor],
    entropies: Sequence[Tensor],
    old: Sequence[Tensor],
    advantage: Tensor,
    *,
    epsilon: float = 0.2,
    entropy_coeff: float = 0.01,
) -> dict[str, Tensor]:
    """Clipped surrogate, entropy bonus, figures; all `[*B]` but the advantage `[*B, 1]`."""
    low, high = math.log1p(-epsilon), math.log1p(epsilon)
    advantage = advantage.squeeze(-1)
    leaf_ratios = [new - stored for new, stored in zip(log_probs, old, strict=True)]
    log_ratio, entropy = sum(leaf_ratios), sum(entropies)
    ratio = log_ratio.clamp(-20, 20).exp()
    clipped = log_ratio.clamp(low, high).exp()
    out = {
        "loss_objective": -torch.minimum(ratio * advantage, clipped * advantage).mean(),
        "loss_entropy": -entropy_coeff * entropy.mean(),
    }
    with torch.no_grad():
        out["entropy"] = entropy.mean()
        out["kl_approx"] = -log_ratio.mean()
        for leaf, (leaf_ratio, leaf_entropy) in enumerate(zip(leaf_ratios, entropies, strict=True)):
            out[f"kl_approx_{leaf}"] = -leaf_ratio.mean()
            out[f"entropy_{leaf}"] = leaf_entropy.mean()
        out["clip_fraction"] = ((log_ratio < low) | (log_ratio > high)).float().mean()
        rows = log_ratio.flatten()
        ess = 2 * rows.logsumexp(0) - (2 * rows).logsumexp(0)
        out["ESS"] = ess.exp() / rows.numel()
        out["max_ratio"], out["mean_ratio"] = ratio.max(), ratio.mean()
        out["ratio_clamped"] = (log_ratio.abs() > 20).sum()
    return out


def critic_loss(value: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Smooth L1 loss and explained variance; `[*B, 1]` each."""
    out = {"loss_critic": F.smooth_l1_loss(value, target)}
    with torch.no_grad():
        spread = target.var(correction=0) + torch.finfo(target.dtype).eps
        out["explained_variance"] = 1 - (target - value).var(correction=0) / spread
    return out


def hybrid_loss(
    actor: HybridActor, critic: nn.Module, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """ClipPPO of a hybrid actor and a critic on a batch of collected actions."""
    log_probs, entropies = actor.score(batch)
    old = [batch[f"{leaf}_log_prob"] for leaf in ("kind", "target", "force")]
    out = clip_loss(log_probs, entropies, old, batch["advantage"])
    return out | critic_loss(critic(batch["observation"]), batch["value_target"])


def choice_loss(
    body: nn.Module, linear: nn.Linear, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """ClipPPO of one masked choice without a critic."""
    log_probs = masked_log_probs(linear(body(batch["observation"])), batch["action_mask"])
    log_prob, entropy = choice(log_probs, batch["action"])
    return clip_loss([log_prob], [entropy], [batch["action_log_prob"]], batch["advantage"])
