"""Heads with several leaves as tables of their joint actions, in numpy float64.

An oracle: it knows each leaf given the actions before it, and lists all combinations. Nothing of
tdheads is used but the modules that compute parameters from features and actions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from tdheads import Head
from tests import oracle
from tests.cases import HEADS, NVEC, HeadCase, bit_probs, factored_probs, listed_probs

FloatArray = np.ndarray
#: what the leaves before took; ``None`` where a leaf is irrelevant
Taken = dict[Any, Any]


@dataclass(frozen=True)
class Density:
    """A continuous leaf: normal dims, squashed into bounds if there are any."""

    loc: FloatArray
    scale: FloatArray
    bounds: tuple[float, float] | None = None

    def log_prob(self, action: FloatArray) -> float:
        """Log-density of one action."""
        if self.bounds is None:
            z = (action - self.loc) / self.scale
            return float((-z * z / 2 - np.log(self.scale) - math.log(2 * math.pi) / 2).sum())
        parts = zip(action, self.loc, self.scale, strict=True)
        return float(sum(oracle.tanh_normal_log_density(*part, *self.bounds) for part in parts))

    def entropy(self) -> float:
        """Differential entropy."""
        if self.bounds is None:
            return float((np.log(self.scale) + math.log(2 * math.pi * math.e) / 2).sum())
        pairs = zip(self.loc.tolist(), self.scale.tolist(), strict=True)
        return sum(_squashed_entropy(*pair, *self.bounds) for pair in pairs)

    def kl(self, other: Density) -> float:
        """KL of the latent normals: squashing both changes nothing."""
        ratio, gap = self.scale / other.scale, (self.loc - other.loc) / other.scale
        return float(((ratio**2 + gap**2 - 1) / 2 - np.log(ratio)).sum())

    def latent(self, actions: FloatArray) -> FloatArray:
        """What is standard normal if the actions are drawn from it."""
        if self.bounds is not None:
            low, high = self.bounds
            unit = (actions - (low + high) / 2) / ((high - low) / 2)
            actions = np.arctanh(unit.clip(-1 + 1e-12, 1 - 1e-12))
        return (actions - self.loc) / self.scale


@functools.cache
def _squashed_entropy(loc: float, scale: float, low: float, high: float) -> float:
    return oracle.tanh_normal_entropy(loc, scale, low, high)


#: a leaf given the actions before it: value -> probability, a density, or ``None``: irrelevant
Local = dict[Any, float] | Density | None


class Row:
    """One row of a batch: parameters and masks as arrays."""

    def __init__(self, head: Head, td: TensorDictBase) -> None:
        self.head, self.td = head, td

    def __getitem__(self, key: Any) -> FloatArray:
        return self.td[key].detach().numpy()

    def after(self, key: Any, taken: Taken) -> FloatArray:
        """A parameter that is computed from the features and the actions before it."""
        module = next(m for m in self.head.parameter_modules if key in m.out_keys)
        actions = {name: torch.tensor(value or 0) for name, value in taken.items()}
        return module(TensorDict({"hidden": self.td["hidden"], **actions}))[key].detach().numpy()


def choice(logits: FloatArray, mask: FloatArray | None = None) -> dict[Any, float]:
    """One of several choices."""
    mask = np.ones(logits.shape, dtype=bool) if mask is None else mask
    return dict(enumerate(oracle.masked_probs(logits, mask).tolist()))


def normal(loc: FloatArray, raw: FloatArray, bounds: tuple[float, float] | None = None) -> Density:
    """A normal whose scale is 1 at raw 0 and at least 0.01, as TorchRL maps it."""
    shift = float(np.log(np.expm1(np.float32(0.99))))  # which TorchRL computes in float32
    scale = np.logaddexp(0, raw + shift) + 0.01
    return Density(loc, scale, bounds)


def items(row: Row, mask: FloatArray | None = None) -> dict[Any, float]:
    """Three choices, independent of each other."""
    mask = np.ones(sum(NVEC), dtype=bool) if mask is None else mask
    return factored_probs(row["items_logits"], mask)


def kind(row: Row, _: Taken) -> Local:
    return choice(row["kind_logits"], row["kind_mask"])


def free_kind(row: Row, _: Taken) -> Local:
    return choice(row["kind_logits"])


def next_item(step: int) -> Callable[[Row, Taken], Local]:
    """The item after others, none of them twice."""

    def local(row: Row, taken: Taken) -> Local:
        if not taken[f"items_{step - 1}"]:
            return None
        mask = row["items_mask"].copy()
        mask[[value for value in taken.values() if value]] = False
        return choice(row.after(f"items_{step}_logits", taken), mask)

    return local


Leaves = Mapping[Any, Callable[[Row, Taken], Local]]

LEAVES: dict[str, Leaves] = {
    "conditional": {
        "kind": kind,
        "force": lambda row, a: (
            normal(row["force_loc"], row["force_scale"], (1, 3)) if a["kind"] in (0, 1, 2) else None
        ),
        "items": lambda row, a: items(row) if a["kind"] in (2, 3, 4) else None,
    },
    "mask given": {
        "kind": free_kind,
        "target": lambda row, a: choice(row["target_logits"], row["target_mask"][a["kind"]]),
    },
    "autoregressive": {
        "kind": kind,
        "target": lambda row, a: choice(row.after("target_logits", a)),
        "force": lambda row, a: normal(row.after("force_loc", a), row.after("force_scale", a)),
    },
    "tree": {
        "kind": free_kind,
        "target": lambda row, a: (
            choice(row.after("target_logits", a), row["target_mask"][1]) if a["kind"] == 1 else None
        ),
        "bits": lambda row, a: (
            bit_probs(row["bits_logits"], np.ones(3, dtype=bool))
            if a["target"] in (0, 1, 2)
            else None
        ),
    },
    "gated list": {
        "kind": kind,
        "move": lambda row, a: (
            listed_probs(row["move_logits"], row["move_legal"]) if a["kind"] in (0, 2) else None
        ),
        "bits": lambda row, a: (
            bit_probs(row["bits_logits"], np.ones(2, dtype=bool))
            if a["move"] is not None and a["move"] % 2 == 0
            else None
        ),
    },
    "sequence": {
        "items_0": lambda row, a: choice(row["items_0_logits"], row["items_mask"]),
        "items_1": next_item(1),
        "items_2": next_item(2),
    },
    "hybrid": {
        "kind": kind,
        ("arm", "force"): lambda row, a: normal(row["arm", "force_loc"], row["arm", "force_scale"]),
        "where": lambda row, a: normal(row["where_loc"], row["where_scale"], (-1, 3)),
        "items": lambda row, a: items(row, row["items_mask"]),
    },
}


@dataclass(frozen=True)
class Joint:
    """A head of the table with its leaves as the oracle knows them."""

    name: str
    case: HeadCase
    leaves: Leaves
    #: keywords of the head with which entropy and KL are exact
    exact: dict[str, bool] = field(default_factory=dict)


_BY_NAME = {case.name: case for case in HEADS}
_EXACT = {name: {"enumerate_parents": True} for name in ("autoregressive", "sequence")}
JOINTS = [
    Joint(name, _BY_NAME[name], leaves, _EXACT.get(name, {})) for name, leaves in LEAVES.items()
]


@dataclass(frozen=True)
class Combination:
    """Values of all discrete leaves, and each leaf given those before it."""

    taken: Taken
    local: dict[Any, Local]

    def prob(self, key: Any) -> float:
        """Probability of a discrete leaf's value given the values before it."""
        local = self.local[key]
        return local[self.taken[key]] if isinstance(local, dict) else 1.0

    @property
    def joint(self) -> float:
        """Probability of all values together."""
        return math.prod(self.prob(key) for key in self.local)


def combinations(joint: Joint, row: Row) -> Iterator[Combination]:
    """Every combination of the discrete leaves' values, impossible ones included."""

    def walk(keys: list[Any], taken: Taken, local: dict[Any, Local]) -> Iterator[Combination]:
        if not keys:
            yield Combination(taken, local)
            return
        key, *rest = keys
        found = joint.leaves[key](row, taken)
        for value in found if isinstance(found, dict) else [None]:
            yield from walk(rest, {**taken, key: value}, {**local, key: found})

    yield from walk(list(joint.leaves), {}, {})
