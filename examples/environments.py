"""Every environment of `envs/`: nothing illegal, ratios of 1, and better than playing at random.

    python examples/environments.py                # all of them, RUNTIME
    python examples/environments.py snake chess    # those that are named

Prints one row per environment: its package, the frames of training, the illegal actions in 10,000
steps of the untrained policy, how far the ratios of a first batch are from 1, and the mean return
of an episode of the random policy, which is uniform over what is legal, and of the trained one,
over the same number of episodes. Training is that of `train.py` with the environment's own
settings. A run that `--runs` holds already is evaluated, not trained again.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from agent import Agent
from envs import TASKS, MissingPackageError, Task
from evaluation import evaluate, illegal_actions
from options import DEFAULTS
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type
from train import Run, train

STEPS, BATCH = 10_000, 1_000
"""Steps in which illegal actions are counted, and in which the ratios are taken."""

COLUMNS = ("environment", "package", "frames", "illegal", "ratio - 1", "random", "trained")


# --- The random policy -----------------------------------------------------------------------


def random_policy(task: Task, env: EnvBase) -> Callable[[TensorDictBase], TensorDictBase]:
    """Uniform over the legal actions, and over the action space where no mask speaks of it."""
    spec = env.full_action_spec

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        tensordict.update(spec.rand())
        for group in task.parts if task.mask else ():
            action, mask = task.key(task.action, group), task.key(task.mask, group)
            choices = uniform(tensordict[mask].bool(), tensordict.ndim if task.joint else None)
            tensordict[action] = choices.to(spec[action].dtype)
        return tensordict

    return act


def uniform(mask: Tensor, joint_from: int | None = None) -> Tensor:
    """A legal choice of the last dim, or of all dims from `joint_from` on; 0 if none is legal."""
    if joint_from is not None:
        flat = uniform(mask.flatten(joint_from))
        return torch.stack(torch.unravel_index(flat, mask.shape[joint_from:]), -1)
    draws = torch.rand(mask.shape).masked_fill(~mask, -1.0)
    return draws.argmax(-1)


# --- What the untrained policy shows ---------------------------------------------------------


@torch.no_grad()
def count_illegal(agent: Agent, env: EnvBase, task: Task, steps: int = STEPS) -> int:
    """Illegal actions in `steps` steps; without a mask, actions that are not in the spec."""
    illegal = 0
    with set_exploration_type(ExplorationType.RANDOM):
        data = env.reset()
        for _ in range(math.ceil(steps / env.numel())):
            data = agent.actor(data)
            illegal += int(illegal_rows(data, env, task).sum())
            _, data = env.step_and_maybe_reset(data)
    return illegal


def illegal_rows(data: TensorDictBase, env: EnvBase, task: Task) -> Tensor:
    """Which environments were given an action that is not allowed, `[*B]`."""
    if task.mask:
        return illegal_actions(data, task)[0]
    spec = env.full_action_spec
    fits = all(spec[key].is_in(data[key]) for key in env.action_keys)
    return torch.full(data.shape, not fits)


def first_batch(agent: Agent, env: EnvBase, steps: int = BATCH) -> TensorDictBase:
    """A batch of the untrained policy, with advantages."""
    length = math.ceil(steps / env.numel())
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(length, agent.actor, break_when_any_done=False)
        return agent.loss.estimate(batch)


def ratio_error(agent: Agent, batch: TensorDictBase, task: Task) -> float:
    """How far the ratios are from 1: if the largest and the mean are 1, all are.

    Step by step, as the policy acted: a matrix product of more rows is rounded otherwise.
    """
    ratios = []
    for step in batch.unbind(-1):
        if task.mask and not illegal_actions(step, task)[1].any():
            continue  # everybody waits
        losses = agent.loss(step)
        found = [losses[group] if group else losses for group in agent.losses]
        ratios += [out[name] for out in found for name in ("max_ratio", "mean_ratio")]
    return max(abs(ratio.item() - 1) for ratio in ratios)


# --- One row per environment -----------------------------------------------------------------


def show(name: str, runs: Path, total_frames: int | None) -> None:
    """Print the row of an environment, or what it needs."""
    try:
        row = measure(name, runs, total_frames)
    except MissingPackageError as error:
        print(f"{name}: {error}", file=sys.stderr)
    else:
        print(f"| {' | '.join(row)} |", flush=True)


def measure(name: str, runs: Path, total_frames: int | None) -> list[str]:
    """Play, train and evaluate one environment."""
    task = TASKS[name]
    settings = DEFAULTS | task.settings | {"env": name}
    settings["total_frames"] = total_frames or settings["total_frames"]
    run = Run(settings, runs / name)
    torch.manual_seed(0)
    run.env.set_seed(0)
    illegal = count_illegal(run.agent, run.env, task)
    error = ratio_error(run.agent, first_batch(run.agent, run.env), task)
    episodes = settings["eval_episodes"]
    policy = random_policy(task, run.eval_env)
    random = evaluate(policy, run.eval_env, task, episodes)["eval_return"]
    checkpoint = run.out / "checkpoint.pt"
    if checkpoint.exists():
        run.load(torch.load(checkpoint, weights_only=True))
    train(run)
    trained = run.evaluate(episodes)["eval_return"]
    package = f"{task.package} {version(task.package)}" if task.package else "this repository"
    figures = [f"{run.iteration * run.frames:,}", str(illegal), f"{error:g}"]
    return [name, package, *figures, f"{random:.2f}", f"{trained:.2f}"]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Play and train every environment.")
    parser.add_argument("names", nargs="*", metavar="ENV", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--runs", type=Path, default=Path("runs/environments"))
    parser.add_argument("--total-frames", type=int, help="instead of each environment's own")
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in TASKS]
    if unknown:
        parser.error(f"unknown environments {unknown}: expected some of {list(TASKS)}")
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")  # environments' packages warn of their own affairs
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for name in options.names or TASKS:
        show(name, options.runs, options.total_frames)


if __name__ == "__main__":
    main()
