"""The maths of the losses: pure functions of tensors, which know no key, network or device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdheads.reduce import masked_mean

# exp(20) is about 5e8: beyond it a float32 surrogate is noise, and soon inf
MAX_LOG_RATIO = 20.0


def ratio(log_ratio: Tensor) -> Tensor:
    r"""Importance ratio ``w = exp(log w)``, with ``log w`` clamped to +-20; ``nan`` passes through.

    Shapes: ``[*B]`` -> ``[*B]``.

    Example:
        >>> ratio(torch.tensor([0.0, 1e4, float("nan")]))
        tensor([1.0000e+00, 4.8517e+08,        nan])
    """
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def surrogate(log_ratio: Tensor, advantage: Tensor, log_weight: Tensor | None = None) -> Tensor:
    r"""Importance-weighted advantage, to be maximised.

    .. math:: w A

    Args:
        log_ratio: ``log w``, shape ``[*B]``.
        advantage: ``A``, shape ``[*B]``.
        log_weight: log of a gradient-free weight of each row (proximal / behaviour policy), or
            ``None`` for 1.

    Source: Schulman et al., "Proximal Policy Optimization Algorithms", eq. 6,
    https://arxiv.org/abs/1707.06347.

    Example:
        >>> surrogate(torch.tensor([0.0]), torch.tensor([2.0]))
        tensor([2.])
    """
    return ratio(log_ratio if log_weight is None else log_ratio + log_weight) * advantage


def clipped_surrogate(
    log_ratio: Tensor,
    advantage: Tensor,
    log_low: Tensor,
    log_high: Tensor,
    log_weight: Tensor | None = None,
) -> Tensor:
    r"""Clipped importance-weighted advantage, to be maximised.

    .. math:: \min(w A, \mathrm{clip}(w, 1 - \epsilon_l, 1 + \epsilon_h) A)

    Args:
        log_ratio: ``log w``, shape ``[*B]``.
        advantage: ``A``, shape ``[*B]``.
        log_low, log_high: ``log(1 - eps_low)`` and ``log(1 + eps_high)``, scalars.
        log_weight: as in :func:`surrogate`; the clip acts on ``w`` alone.

    Source: Schulman et al., eq. 7, https://arxiv.org/abs/1707.06347; two epsilons: DAPO, eq. 10,
    https://arxiv.org/abs/2503.14476; ``log_weight``: Hilton et al., "Batch size-invariance for
    policy optimization", eq. 2, https://arxiv.org/abs/2110.00641.

    Example:
        >>> low, high = torch.tensor(0.8).log(), torch.tensor(1.2).log()
        >>> clipped_surrogate(torch.tensor([2.0]).log(), torch.tensor([1.0]), low, high)
        tensor([1.2000])
    """
    # of the two ends of the clip the minimum keeps the one that the advantage pulls towards
    gain, limit = advantage > 0, MAX_LOG_RATIO if log_weight is None else torch.inf
    low = torch.where(gain, -limit, log_low)
    high = torch.where(gain, log_high, limit)
    clipped = torch.clamp(log_ratio, low, high)
    if log_weight is None:
        return clipped.exp() * advantage
    return surrogate(clipped, advantage, log_weight)


def penalized_surrogate(
    log_ratio: Tensor,
    advantage: Tensor,
    kl: Tensor,
    beta: Tensor,
    log_weight: Tensor | None = None,
) -> Tensor:
    r"""Importance-weighted advantage with a KL penalty, to be maximised.

    .. math:: w A - \beta\, KL(p_{old} \,\|\, p_{new})

    Args:
        log_ratio: ``log w``, shape ``[*B]``.
        advantage: ``A``, shape ``[*B]``.
        kl: shape ``[*B]``.
        beta: weight of the penalty, a scalar.
        log_weight: as in :func:`surrogate`.

    Source: Schulman et al., eq. 8, https://arxiv.org/abs/1707.06347.

    Example:
        >>> one = torch.tensor([1.0])
        >>> penalized_surrogate(one.log(), 2 * one, one / 2, torch.tensor(3.0))
        tensor([0.5000])
    """
    return surrogate(log_ratio, advantage, log_weight) - beta * kl


def adapted_beta(
    beta: Tensor, kl: Tensor, target: float, increment: float, decrement: float
) -> Tensor:
    r"""Weight of a KL penalty for the next update; a ``kl`` that is ``nan`` changes nothing.

    .. math:: \beta \cdot increment \text{ if } KL > 1.5\, target, \quad
              \beta \cdot decrement \text{ if } KL < target / 1.5, \quad \beta \text{ else}

    Shapes: ``beta`` and ``kl`` ``[]`` -> ``[]``. No value is looked at on the host.

    Source: Schulman et al., section 4, https://arxiv.org/abs/1707.06347.

    Example:
        >>> adapted_beta(torch.tensor(1.0), torch.tensor(0.5), 0.01, 2.0, 0.5)
        tensor(2.)
    """
    up, down = kl > 1.5 * target, kl < target / 1.5
    return torch.where(up, beta * increment, torch.where(down, beta * decrement, beta))


def effective_sample_size(ratio: Tensor, valid: Tensor | None = None) -> Tensor:
    r"""Effective sample size as a share of the valid rows: 1 when all ratios ``w`` are equal.

    .. math:: \frac{(\sum_i w_i)^2}{N \sum_i w_i^2}

    Shapes: ``[*B]`` -> ``[]``.

    Source: Kong, "A note on importance sampling using standardized weights" (1992).

    Example:
        >>> effective_sample_size(torch.tensor([2.0, 2.0]))
        tensor(1.)
    """
    count: Tensor | int = ratio.numel()
    if valid is not None:
        ratio, count = ratio.masked_fill(~valid, 0), valid.sum()
    rows = ratio.reshape(-1)
    # no square of a ratio within exp(+-20) is 0 or inf
    total = (count * rows.dot(rows)).clamp_min(torch.finfo(rows.dtype).tiny)
    return rows.sum().square() / total


def standardize(
    advantage: Tensor, valid: Tensor | None = None, exclude_dims: Sequence[int] = ()
) -> Tensor:
    r"""Standardise over the valid rows; with fewer than two of them, return the input as it is.

    .. math:: (A - \mathrm{mean}_V A) / \max(\mathrm{std}_V A, 10^{-6})

    with the unbiased standard deviation. ``exclude_dims`` are kept apart (e.g. the agent dim).

    Shapes: ``[*B]`` -> ``[*B]``.

    Example:
        >>> standardize(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False]))[:2]
        tensor([-0.7071,  0.7071])
        >>> standardize(torch.tensor([5.0]))
        tensor([5.])
    """
    keep = {dim % advantage.ndim for dim in exclude_dims}
    dims = [dim for dim in range(advantage.ndim) if dim not in keep]
    if not dims:
        return advantage
    if valid is None:
        valid = torch.ones_like(advantage, dtype=torch.bool)
    count = valid.sum(dims, keepdim=True)
    mean = torch.where(valid, advantage, 0).sum(dims, keepdim=True) / count.clamp_min(1)
    centred = torch.where(valid, advantage - mean, 0)
    variance = centred.square().sum(dims, keepdim=True) / (count - 1).clamp_min(1)
    scaled = (advantage - mean) / variance.sqrt().clamp_min(1e-6)
    return torch.where(count > 1, scaled, advantage)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor | None = None) -> Tensor:
    r"""Share of the target's variance that the value explains: 1 is perfect, 0 is a constant.

    .. math:: 1 - \mathrm{Var}_V(R - V) / \mathrm{Var}_V(R)

    Shapes: ``[*B]`` -> ``[]``.

    Source: Baselines' ``explained_variance``, https://github.com/openai/baselines.

    Example:
        >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
        tensor(1.)
    """
    total = _variance(target, valid) + torch.finfo(target.dtype).eps
    return 1 - _variance(target - value, valid) / total


def clip_value(value: Tensor, old_value: Tensor, clip: Tensor) -> Tensor:
    r"""Value prediction clipped around the old one: ``V_old + clip(V - V_old, -c, c)``.

    Source: Baselines' PPO2; studied in Engstrom et al., https://arxiv.org/abs/2005.12729.

    Example:
        >>> clip_value(torch.tensor([3.0]), torch.tensor([1.0]), torch.tensor(0.5))
        tensor([1.5000])
    """
    return old_value + (value - old_value).clamp(-clip, clip)


def _variance(x: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None and x.numel():
        return x.var(correction=0)
    deviation = x - masked_mean(x, valid)
    return masked_mean(deviation.square(), valid)


def count_clamped(log_ratio: Tensor, valid: Tensor | None = None) -> Tensor:
    """Count the valid rows whose log-ratio :func:`ratio` clamps.

    Example:
        >>> count_clamped(torch.tensor([0.0, 50.0]))
        tensor(1)
    """
    beyond = log_ratio.abs() > MAX_LOG_RATIO
    return (beyond if valid is None else beyond & valid).sum()
