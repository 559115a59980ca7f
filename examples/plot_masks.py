"""Draw `runs/taxi.png`: Taxi with and without the mask, three seeds each.

    python examples/plot_masks.py        # trains what is missing, about six minutes on one core

Both policies train with the same settings, those of `envs/taxi.py`, which were chosen with the
mask. Without it, two others (`--lr 1e-3 --gamma 0.99`; `--gamma 0.99 --entropy-coeff 0.05`) ended
at the same return. The first batches hold only the episodes that ended early, which are the good
ones.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

TRAIN = Path(__file__).with_name("train.py")
VARIANTS = {"--mask": "with the mask", "--no-mask": "without"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw Taxi with and without the mask.")
    parser.add_argument("--runs", type=Path, default=Path("runs/masks"), help="folder of the runs")
    parser.add_argument("--output", type=Path, default=Path("runs/taxi.png"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()

    figure, (upper, lower) = pyplot.subplots(
        2, 1, sharex=True, figsize=(7, 5), height_ratios=[2, 1]
    )
    for variant, label in VARIANTS.items():
        runs = [train(options.runs, variant, seed) for seed in options.seeds]
        draw(upper, [read(run, "return") for run in runs], label)
        draw(lower, [read(run, "illegal") for run in runs], label)
    upper.set(ylabel="mean return while exploring", ylim=(-420, 20))
    upper.axhline(7.93, color="grey", linewidth=0.8, linestyle=":", label="optimum")
    upper.legend()
    lower.set(xlabel="thousand frames", ylabel="illegal actions", ylim=(-0.05, 1))
    upper.set_title(f"Taxi-v4, PPO, {len(options.seeds)} seeds (line: mean, area: range)")
    figure.tight_layout()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=150)
    print(f"wrote {options.output}")


def train(folder: Path, variant: str, seed: int) -> Path:
    """The folder of a finished run, after training it if it is not there."""
    out = folder / f"taxi{variant}-{seed}"
    if not (out / "checkpoint.pt").exists():
        command = [sys.executable, TRAIN, "--env", "taxi", variant, "--seed", seed, "--out", out]
        subprocess.run([str(word) for word in command], check=True)
    return out


def read(run: Path, name: str) -> np.ndarray:
    """A figure of the log: rows of (frames, value)."""
    return np.loadtxt(run / "csv" / "scalars" / f"{name}.csv", delimiter=",", ndmin=2)


def draw(axes: Axes, curves: list[np.ndarray], label: str) -> None:
    """Mean and range over seeds. A batch in which no episode ended has no return: interpolate."""
    frames = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    values = np.stack([np.interp(frames, *curve.T) for curve in curves])
    (line,) = axes.plot(frames / 1000, values.mean(0), label=label)
    axes.fill_between(
        frames / 1000, values.min(0), values.max(0), color=line.get_color(), alpha=0.2
    )


if __name__ == "__main__":
    main()
