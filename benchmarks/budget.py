"""The speed budget: ratios to hand-written PyTorch and to other libraries, measured five times.

    python benchmarks/budget.py [--repeats 5] [--only hybrid dims acting memory compiled]

Every row is the time (or the peak memory) of tdheads as a share of a reference that does the same
work on the same networks, in one process and one thread, in alternating blocks: the median over the
blocks, once per repeat. `reference.py` says what the plain references include. tdheads has its
checks on, as by default. SB3-contrib takes part where it is installed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict.nn import set_composite_lp_aggregate
from torchrl.envs.utils import ExplorationType, set_exploration_type

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import reference
from benchmarks.alternate import block_times, ratio
from benchmarks.memory import peak_bytes, saved_bytes
from benchmarks.workloads import Choices, Dimensions, Hybrid

TERMS = ("loss_objective", "loss_entropy", "loss_critic")
#: without guards on modules and globals: for who changes no setting once the loss is compiled
COMPILED: Mapping[str, Mapping[str, Any]] = {
    "compiled": {},
    "compiled, guards on tensors": {
        "options": {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
    },
}
Runs = Mapping[str, Callable[[], Any]]


class Row(NamedTuple):
    """One line of the table: what is measured, the goal, and the ratio found."""

    name: str
    goal: str
    found: float


def backward(out: Any) -> None:
    sum(out[term] for term in TERMS if term in out.keys()).backward()


def hybrid_runs(batch: int, *, compiled: bool = False, **options: Any) -> Runs:
    work = Hybrid(batch)
    ours: Any = work.loss
    plain: Any = reference.hybrid_loss
    if compiled:
        ours, plain = (torch.compile(fn, fullgraph=True, **options) for fn in (ours, plain))

    def torchrl() -> None:
        with set_composite_lp_aggregate(False):
            backward(work.torchrl_loss(work.td))

    return {
        "ours": lambda: backward(ours(work.td)),
        "plain": lambda: backward(plain(work.plain_actor, work.plain_critic, work.plain)),
        **({} if compiled else {"torchrl": torchrl}),
    }


def hybrid(blocks: int) -> Iterator[Row]:
    for batch, goal in ((256, "<= 1.2"), (4096, "<= 1.1")):
        times = block_times(hybrid_runs(batch), blocks)
        name = f"hybrid ClipPPO, batch {batch}"
        yield Row(f"{name}, of plain", goal, ratio(times, "ours", "plain").median)
        goal = ">= 2.2" if batch == 256 else ""
        yield Row(f"{name}, TorchRL of ours", goal, ratio(times, "torchrl", "ours").median)


def compiled(blocks: int) -> Iterator[Row]:
    for name, options in COMPILED.items():
        for batch in (256, 4096):
            torch.compiler.reset()
            times = block_times(hybrid_runs(batch, compiled=True, **options), blocks)
            row = f"hybrid ClipPPO, {name}, batch {batch}, of the same of plain"
            yield Row(row, "<= 1.15", ratio(times, "ours", "plain").median)


def dims(blocks: int) -> Iterator[Row]:
    for batch in (1, 64, 256, 4096):
        runs = Dimensions(batch).runs()
        times = block_times(runs, blocks)
        name = f"eight dimensions, batch {batch}"
        yield Row(f"{name}, of a loop", "< 1", ratio(times, "ours", "loop").median)
        for other in (set(runs) - {"ours", "loop"}) if batch == 256 else ():
            yield Row(f"{name}, {other} of ours", ">= 3", ratio(times, other, "ours").median)


def acting(blocks: int) -> Iterator[Row]:
    for batch in (1, 64):
        work = Hybrid(batch)
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            times = block_times(
                {
                    "ours": lambda work=work: work.actor(work.inputs),
                    "plain": lambda work=work: work.plain_actor.act(work.plain_inputs),
                },
                blocks,
            )
        yield Row(
            f"acting, batch {batch}, of plain", "<= 1.5", ratio(times, "ours", "plain").median
        )


def memory(_: int) -> Iterator[Row]:
    wide = Choices(64)
    both = {"29,275 choices": wide.runs(), "hybrid, batch 4096": hybrid_runs(4096)}
    for name, runs in both.items():
        found, plain = (peak_bytes(runs[who]) for who in ("ours", "plain"))
        yield Row(f"{name}, peak bytes, of plain", "<= 1.1", found / plain)
    found, plain = (saved_bytes(loss) for loss in wide.losses())
    yield Row("29,275 choices, saved bytes, of plain", "", found / plain)


PARTS = {"hybrid": hybrid, "dims": dims, "acting": acting, "memory": memory, "compiled": compiled}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.repeats):
        for part in options.only:
            for row in PARTS[part](options.blocks):
                table.setdefault((row.name, row.goal), []).append(row.found)
                print(f"{row.name}: {row.found:.2f}", file=sys.stderr)
    print(f"| | goal | measured {options.repeats} times |\n| --- | --- | --- |")
    for (name, goal), found in table.items():
        print(f"| {name} | {goal} | {', '.join(f'{x:.2f}' for x in found)} |")


if __name__ == "__main__":
    main()
