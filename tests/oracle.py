"""Independent float64 oracles: numpy and enumeration, nothing of tdheads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

FloatArray = np.ndarray


def masked_probs(logits: FloatArray, mask: FloatArray) -> FloatArray:
    """Probabilities of one row: softmax over the legal choices, computed by sorting them out."""
    legal = np.flatnonzero(mask)
    if not len(legal):
        return np.zeros(len(mask))
    z = np.asarray(logits, dtype=np.float64)[legal]
    weights = np.exp(z - z.max())
    probs = np.zeros(len(mask))
    probs[legal] = weights / weights.sum()
    return probs


def joint_probs(rows: Sequence[FloatArray]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every joint choice of independent dimensions with its probability."""
    for choice in itertools.product(*(range(len(row)) for row in rows)):
        yield choice, float(np.prod([row[i] for row, i in zip(rows, choice, strict=True)]))


def entropy(probs: FloatArray) -> float:
    """Entropy in nats, 0 log 0 = 0."""
    positive = probs[probs > 0]
    return float(-(positive * np.log(positive)).sum())


def kl(p: FloatArray, q: FloatArray) -> float:
    """KL(p || q) in nats."""
    where = p > 0
    return float((p[where] * (np.log(p[where]) - np.log(q[where]))).sum())


def tanh_normal_log_density(
    action: FloatArray, loc: float, scale: float, low: float, high: float
) -> FloatArray:
    """Log-density of middle + half * tanh(x), x normal, by the change of variables."""
    half = (high - low) / 2
    y = (action - (low + high) / 2) / half
    x = np.arctanh(y)
    normal = -0.5 * ((x - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    return normal - np.log(half) - np.log1p(-y * y)


def tanh_normal_entropy(loc: float, scale: float, low: float, high: float) -> float:
    """Differential entropy by the trapezoid rule over the latent."""
    z = np.linspace(-14, 14, 400_001)
    weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    x = loc + scale * z
    log_slope = 2 * (np.log(2) - x - np.logaddexp(0, -2 * x))
    normal = 0.5 * np.log(2 * np.pi * np.e) + np.log(scale)
    return float(normal + np.log((high - low) / 2) + np.trapezoid(weight * log_slope, z))
