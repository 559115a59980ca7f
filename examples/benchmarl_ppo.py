"""BenchMARL's IPPO and MAPPO with its own losses and with ours, on two tasks of VMAS.

    python examples/benchmarl_ppo.py

needs BenchMARL, and with it torchrl 0.11, in an environment of its own (see the README). For every
task and algorithm it trains both for the same frames from the same seeds, and prints the mean
return of the last iterations as a row of a Markdown table. Half a minute of one core per training.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict

try:
    from benchmarl import algorithms as theirs
    from benchmarl.environments import VmasTask
    from benchmarl.experiment import Callback, Experiment, ExperimentConfig
    from benchmarl.models import MlpConfig
except ImportError as error:
    sys.exit(
        f"benchmarl_ppo.py: {error}; it needs an environment of its own: python3 -m venv"
        " .venv-benchmarl && .venv-benchmarl/bin/pip install -c constraints-0.11.txt -e"
        " '.[benchmarl]'"
    )

import tdheads.benchmarl as ours

#: name -> the task, its settings, whether actions are continuous
TASKS: dict[str, tuple[VmasTask, dict[str, Any], bool]] = {
    "navigation, continuous": (VmasTask.NAVIGATION, {"n_agents": 2}, True),
    "simple_spread, discrete": (VmasTask.SIMPLE_SPREAD, {"n_agents": 2}, False),
}
ALGORITHMS = {"IPPO": "IppoConfig", "MAPPO": "MappoConfig"}
FRAMES, LAST = 6000, 5


class Run(NamedTuple):
    """One training."""

    task: str
    algorithm: str
    library: str
    seed: int
    iterations: int


class Returns(Callback):
    """Keeps the mean return of every iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_end(self, training_td: TensorDict, group: str) -> None:
        self.found.append(float(self.experiment.mean_return))


def configure(continuous: bool, iterations: int, folder: str) -> ExperimentConfig:
    config = ExperimentConfig.get_from_yaml()
    config.loggers, config.create_json, config.save_folder = [], False, folder
    config.evaluation = config.render = False
    config.prefer_continuous_actions = continuous
    config.max_n_iters, config.max_n_frames = iterations, None
    # 60 environments for one episode of 100 steps
    config.on_policy_n_envs_per_worker = 60
    config.on_policy_collected_frames_per_batch = FRAMES
    config.on_policy_n_minibatch_iters, config.on_policy_minibatch_size = 8, 1000
    config.lr = 1e-3
    return config


def train(run: Run) -> list[float]:
    """Return the mean return of every iteration, and show it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    member, settings, continuous = TASKS[run.task]
    task = member.get_from_yaml()
    task.config |= settings
    algorithm = getattr({"theirs": theirs, "ours": ours}[run.library], ALGORITHMS[run.algorithm])
    model = MlpConfig.get_from_yaml()
    model.num_cells = [64, 64]
    returns = Returns()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        Experiment(
            task,
            algorithm.get_from_yaml(),
            model,
            run.seed,
            configure(continuous, run.iterations, folder),
            callbacks=[returns],
        ).run()
    print(*run, *(f"{value:.2f}" for value in returns.found), file=sys.stderr)
    return returns.found


def last(returns: list[float]) -> float:
    return statistics.mean(returns[-LAST:])


def show(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="IPPO and MAPPO of BenchMARL, theirs and ours.")
    parser.add_argument("--iterations", type=int, default=12, help="of 6,000 frames each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    chosen = options()
    rows = [(task, algorithm) for task in TASKS for algorithm in ALGORITHMS]
    runs = [
        Run(*row, library, seed, chosen.iterations)
        for row in rows
        for library in ("theirs", "ours")
        for seed in chosen.seeds
    ]
    with ProcessPoolExecutor(chosen.workers) as pool:
        found = dict(zip(runs, pool.map(train, runs), strict=True))
    print("| task | algorithm | at first | BenchMARL's loss | ours |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        of = {
            library: [found[run] for run in runs if run[:3] == (*row, library)]
            for library in ("theirs", "ours")
        }
        first = statistics.mean(returns[0] for both in of.values() for returns in both)
        ends = [show([last(returns) for returns in of[library]]) for library in of]
        print(f"| {row[0]} | {row[1]} | {first:.2f} | {ends[0]} | {ends[1]} |")
    frames = chosen.iterations * FRAMES
    print(f"\n{frames:,} frames, {len(chosen.seeds)} seeds, mean of the last {LAST} iterations")


if __name__ == "__main__":
    main()
