"""What a run of `train.py` leaves to look at: progress bar, log, learning curve, profile."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from envs import require
from evaluation import Row
from torchrl.record.loggers import Logger

if TYPE_CHECKING:
    from train import Run

PHASES = ("environment", "acting", "advantage", "loss", "backward", "optimizer")
"""What `train.py` times, apart from whole iterations."""


class Log:
    """Progress bar and log files of a run."""

    SHOWN = ("return", "eval_return", "illegal", "entropy", "kl_approx")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.logger = make_logger(run.settings["logger"], run.out)
        # The files are written anew from the checkpoint's history: rows that an interrupted run
        # wrote after its last checkpoint would come twice.
        for row in run.history:
            self._log(row)
        total, done = run.iterations * run.frames, run.iteration * run.frames
        require("matplotlib", "examples")  # before training, not after it
        tqdm = require("tqdm", "examples").tqdm
        pause = 0.2 if sys.stderr.isatty() else 10
        self.bar = tqdm(
            total=total, initial=done, unit="f", unit_scale=True, smoothing=0, mininterval=pause
        )
        self.shown: dict[str, str] = {}

    def write(self, row: Row) -> None:
        """Add one iteration's figures."""
        self.run.history.append(row)
        self._log(row)
        self.shown |= {name: f"{row[name]:.3g}" for name in self.SHOWN if name in row}
        self.bar.set_postfix(self.shown, refresh=False)
        self.bar.update(self.run.frames)

    def close(self) -> None:
        """Leave the finished bar on the terminal."""
        self.bar.close()

    def _log(self, row: Row) -> None:
        if self.logger:
            for name, value in row.items():
                self.logger.log_scalar(name, value, step=int(row["frames"]))


def make_logger(kind: str, out: Path) -> Logger | None:
    """A TorchRL logger that writes into an empty folder `out/kind`."""
    if kind == "none":
        return None
    shutil.rmtree(out / kind, ignore_errors=True)
    if kind == "csv":
        from torchrl.record.loggers.csv import CSVLogger

        return CSVLogger("csv", log_dir=str(out))
    require("tensorboard", "examples")
    from torchrl.record.loggers.tensorboard import TensorboardLogger

    return TensorboardLogger("tensorboard", log_dir=str(out))


def plot(run: Run) -> None:
    """Draw returns and illegal actions over frames into `curve.png`."""
    require("matplotlib", "examples").use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    curves = {
        "return": (upper, "while exploring"),
        "eval_return": (upper, "deterministic"),
        "illegal": (lower, "while exploring"),
        "eval_illegal": (lower, "deterministic"),
    }
    for name, (axes, label) in curves.items():
        rows = [row for row in run.history if name in row]
        axes.plot([row["frames"] for row in rows], [row[name] for row in rows], label=label)
    upper.set(title=f"{run.settings['env']}, seed {run.settings['seed']}", ylabel="mean return")
    upper.legend()
    lower.set(xlabel="frames", ylabel="illegal", ylim=(-0.02, None))
    figure.tight_layout()
    figure.savefig(run.out / "curve.png", dpi=120)
    pyplot.close(figure)


def profile(seconds: dict[str, float], frames: int) -> str:
    """Frames per second, and the share of each phase in the time of the iterations.

    The rest is what moves data: the collector's and the replay buffer's copies.
    """
    whole = seconds["iteration"]
    shares = {phase: seconds.get(phase, 0.0) / whole for phase in PHASES}
    shares["rest"] = 1 - sum(shares.values())
    lines = [f"{name:<12} {share:6.1%} {share * whole:8.1f} s" for name, share in shares.items()]
    return "\n".join([*lines, f"{frames / whole:,.0f} frames per second, evaluations left out"])
