"""One step of every case in two processes, each with its half of the batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tdheads import ClipPPOLoss, KLPENPPOLoss, PolicyLoss
from tests.batches import collect, gradients, move
from tests.cases import HEADS, HeadCase, critic

WORLD, B = 2, 7


def named(name: str) -> HeadCase:
    return next(case for case in HEADS if case.name == name)


@dataclass(frozen=True)
class Step:
    """A loss around a head, and what is peculiar about the batch."""

    name: str
    kind: Callable[..., PolicyLoss]
    head: HeadCase
    #: in both halves as many rows count
    padded: bool = False
    #: the kind that the first process holds only
    only_kind: int | None = None

    def loss(self) -> PolicyLoss:
        torch.manual_seed(0)
        loss = self.kind(self.head.actor(), critic(), functional=False)
        move(loss)
        return loss

    def batch(self) -> TensorDict:
        """The joined batch, of the policy before the last update."""
        torch.manual_seed(0)
        actor = self.head.actor()
        td = collect(self.head, actor, [WORLD * B])
        if self.only_kind is not None:
            inputs = td.select("observation", *self.head.constraints)
            inputs["kind_mask"][:B] = torch.arange(inputs["kind_mask"].shape[-1]) == self.only_kind
            with torch.no_grad():
                td.update(actor(inputs))
        if self.padded:
            td["collector", "mask"] = torch.tensor([[True], [True], [False]]).repeat(WORLD * B, 1)[
                : WORLD * B
            ]
            td["collector", "mask"][B:] = td["collector", "mask"][:B].clone()
        return td


STEPS = [
    *(
        Step(f"{name}-{head}{'-padded' if padded else ''}", kind, named(head), padded)
        for name, kind in (("clip", ClipPPOLoss), ("kl-penalty", KLPENPPOLoss))
        for head in ("hybrid", "autoregressive")
        for padded in (False, True)
    ),
    # one process never sees a row in which "items" matters, the other does
    Step("clip-irrelevant", ClipPPOLoss, named("conditional"), only_kind=0),
    Step("kl-irrelevant", KLPENPPOLoss, named("conditional"), only_kind=0),
    Step(
        "clip-irrelevant-no-entropy",
        partial(ClipPPOLoss, entropy_bonus=False),
        named("conditional"),
        only_kind=0,
    ),
]


VALUES = torch.tensor([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])


def normalized_by_the_example(rank: int) -> Tensor:
    """What `examples/distributed.py` makes of this process's part of VALUES."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from engines import normalize

    part = VALUES.chunk(WORLD)[rank].clone()
    normalize(part)
    return part


def run(rank: int, folder: str) -> None:
    """Run every step in one of the processes and store what came out."""
    torch.set_num_threads(1)
    store = (Path(folder) / "store").as_uri()
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", store, rank=rank, world_size=WORLD, timeout=wait)
    found: dict[str, tuple[dict[str, Tensor], Tensor | None]] = {}
    for step in STEPS:
        loss, td = step.loss(), step.batch()[rank * B : (rank + 1) * B]
        replica = DistributedDataParallel(loss)
        _, grads = gradients(replica, td)
        gradients(replica, td)  # a parameter without a gradient would be missed here
        beta = loss.beta.clone() if isinstance(loss, KLPENPPOLoss) else None
        found[step.name] = {n.removeprefix("module."): g for n, g in grads.items()}, beta
        del replica  # to free it after the process group can deadlock with Gloo's thread
    torch.save(found, Path(folder) / f"{rank}.pt")
    torch.save(normalized_by_the_example(rank), Path(folder) / f"normalized-{rank}.pt")
    dist.destroy_process_group()
