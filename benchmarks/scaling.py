"""Draws docs/scaling.png: time of an update against the batch and against the number of leaves.

    OMP_NUM_THREADS=1 python -m benchmarks.scaling

Forward and backward of ClipPPOLoss with actor and critic; masked choices of 8 and 32 and a
continuous leaf of two dims in turn. All run in alternating blocks of one process; the
lines are medians of processor time, the bands go from the first to the third quartile.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from tqdm import tqdm

from benchmarks.alternate import block_times
from benchmarks.policies import Policies
from benchmarks.spaces import mixed

BATCHES = (1, 16, 64, 256, 1024, 4096)
LEAVES = (1, 2, 3, 6, 9, 12)
STYLES = {
    "tdheads": {"color": "#35629b", "marker": "o"},
    "plain": {"color": "0.5", "linestyle": "--", "marker": "."},
    "torchrl": {"color": "#c46a2f", "marker": "s"},
}
NAMES = {"plain": "plain PyTorch", "torchrl": "TorchRL"}
Quartiles = tuple[float, float, float]


def measure(leaves: int, batch: int, blocks: int) -> dict[str, Quartiles]:
    """Milliseconds of one update by implementation: quartiles over the blocks."""
    times = block_times(Policies(mixed(leaves), batch).losses("clip"), blocks=blocks)
    quartiles = {impl: statistics.quantiles(t, n=4) for impl, t in times.items()}
    return {impl: tuple(1e3 * q for q in found) for impl, found in quartiles.items()}


def draw(axis: plt.Axes, x: Sequence[int], measured: Sequence[dict[str, Quartiles]]) -> None:
    for impl, style in STYLES.items():
        low, median, high = zip(*(point[impl] for point in measured), strict=True)
        axis.plot(x, median, label=NAMES.get(impl, impl), markersize=4, **style)
        axis.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)


def table(title: str, x: Sequence[int], measured: Sequence[dict[str, Quartiles]]) -> str:
    lines = [f"| {title} | {' | '.join(STYLES)} |", "| --- " * (1 + len(STYLES)) + "|"]
    for value, point in zip(x, measured, strict=True):
        lines.append(f"| {value} | " + " | ".join(f"{point[i][1]:.2f} ms" for i in STYLES) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=40, help="blocks per implementation")
    parser.add_argument("--batch", type=int, default=256, help="batch of the right picture")
    parser.add_argument("--out", type=Path, default=Path("docs/scaling.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    mpl.use("Agg")
    by_batch = [measure(3, batch, options.blocks) for batch in tqdm(BATCHES, "batch")]
    by_leaves = [measure(n, options.batch, options.blocks) for n in tqdm(LEAVES, "leaves")]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    draw(left, BATCHES, by_batch)
    left.set(xscale="log", xlabel="batch, three leaves", ylabel="forward + backward (ms)")
    left.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    left.minorticks_off()
    draw(right, LEAVES, by_leaves)
    right.set(xlabel=f"leaves, batch {options.batch}")
    left.legend(frameon=False)
    figure.savefig(options.out, dpi=150)
    print(table("batch", BATCHES, by_batch), table("leaves", LEAVES, by_leaves), sep="\n\n")


if __name__ == "__main__":
    main()
