"""Counts that do not depend on the machine, of every loss around heads of each kind.

The expected ones are in counts.json. A change moves them on purpose, with

    python -m tests.counts
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.envs.utils import ExplorationType, set_exploration_type

from benchmarks.memory import saved_bytes
from tdheads import CategoricalHead, ClipPPOLoss, SparseCategoricalHead, make_actor
from tests.batches import TERMS, collect, move
from tests.cases import HEADS, LOSSES, HeadCase, LossCase, critic
from tests.syncs import CountSyncs

FILE = Path(__file__).with_name("counts.json")
#: one head of each kind: a choice, several, one-hot, bits, continuous, dependent, all together
KINDS = ("masked", "multi", "one-hot", "bits", "normal", "tanh", "autoregressive", "hybrid")
CASES = [case for case in HEADS if case.name in KINDS]
MANY, LISTED, WIDTH = 29_275, 218, 16  # chess


class CountOperators(TorchDispatchMode):
    """Counts the ATen operators that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.found += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counted_entries() -> Iterator[list[str]]:
    """Collect the reads and writes by ``get`` and ``set``, which take as long as an operator."""
    calls: list[str] = []

    def counted(name: str) -> Any:
        method = getattr(TensorDict, name)

        def call(self: TensorDictBase, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return method(self, *args, **kwargs)

        return mock.patch.object(TensorDict, name, call)

    with counted("get"), counted("set"):
        yield calls


def of_loss(case: HeadCase, kind: LossCase) -> dict[str, int]:
    """Operators, host synchronisations and tensordict entries of a forward and backward."""
    td = collect(case, actor := case.actor(), [11])
    move(actor)
    loss = kind.build(actor, critic())
    loss(td)
    with CountOperators() as forward:
        out = loss(td)
    total = sum(out[term] for term in TERMS)
    with CountOperators() as backward:
        total.backward()
    with CountSyncs() as syncs:
        out = loss(td)
        sum(out[term] for term in TERMS).backward()
    with counted_entries() as entries:
        loss(td)
    return {
        "forward": forward.found,
        "backward": backward.found,
        "syncs": syncs.found.total(),
        "entries": len(entries),
    }


def of_acting(case: HeadCase) -> dict[str, int]:
    """The same of one step of the actor."""
    td = collect(case, actor := case.actor(), [11])
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        actor(td)
        with CountOperators() as operators:
            actor(td)
        with CountSyncs() as syncs:
            actor(td)
        with counted_entries() as entries:
            actor(td)
    return {
        "operators": operators.found,
        "syncs": syncs.found.total(),
        "entries": len(entries),
    }


def of_choices(head: Any, constraint: dict[str, torch.Tensor]) -> int:
    """Bytes that a loss keeps for the backward pass, of one row of very many choices."""
    backbone = TensorDictModule(nn.Linear(3, WIDTH), ["observation"], ["hidden"])
    actor = make_actor(backbone, head, num_features=WIDTH)
    td = TensorDict({"observation": torch.ones(1, 3), **constraint}, [1])
    with torch.no_grad():
        td = actor(td)
    td["advantage"] = torch.ones(1, 1)
    loss = ClipPPOLoss(actor)

    def forward() -> torch.Tensor:
        out = loss(td)
        return out["loss_objective"] + out["loss_entropy"]

    return saved_bytes(forward)


def measure_saved() -> dict[str, int]:
    """Bytes that are kept of a dense mask, and of a list of legal choices."""
    listed = torch.arange(LISTED).unsqueeze(0)
    mask = torch.zeros(1, MANY, dtype=torch.bool).index_fill(1, listed[0], True)
    return {
        "dense": of_choices(CategoricalHead("action", MANY, mask=True), {"action_mask": mask}),
        "list": of_choices(SparseCategoricalHead("action", MANY, LISTED), {"action_legal": listed}),
    }


def measure() -> dict[str, Any]:
    """Everything that is in the file."""
    losses = {f"{kind.name}, {case.name}": of_loss(case, kind) for kind in LOSSES for case in CASES}
    return {
        "versions": versions(),
        "losses": losses,
        "acting": {case.name: of_acting(case) for case in CASES},
        "saved bytes of 29,275 choices": measure_saved(),
    }


def versions() -> dict[str, str]:
    """What the counts depend on besides this library."""
    packages = ("torch", "tensordict", "torchrl")
    return {name: importlib.metadata.version(name).partition("+")[0] for name in packages}


def expected() -> dict[str, Any]:
    """The file."""
    return json.loads(FILE.read_text())


if __name__ == "__main__":
    FILE.write_text(json.dumps(measure(), indent=1) + "\n")
