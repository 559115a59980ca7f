"""Train PPO with masked actions on any environment of `envs/`.

    python examples/train.py                          # Taxi, a minute and a half on one core
    python examples/train.py --env tictactoe --seed 1 --out runs/ttt
    python examples/train.py --env taxi --no-mask     # what happens without the mask
    python examples/train.py --profile                # where the time goes
    python examples/train.py --resume runs/ttt --eval-only --eval-episodes 1000

The run's folder gets `checkpoint.pt`, `curve.png`, and the log (`csv/` or `tensorboard/`). What is
trained is in `agent.py`, what is measured in `evaluation.py`, bar, log and curve in `progress.py`.

A run that was stopped and resumed gives, bit for bit, the weights, the optimizer state and the log
of a run that never stopped (all but `fps`). Nothing inside an environment is saved for that:
a checkpoint, every `--checkpoint-every` iterations, starts a new segment, and a segment starts by
seeding torch and the environment from (seed, iteration) and resetting all environments,
whether or not the run was stopped there. A finished run continues with more `--total-frames`;
the learning rate then follows the new total, unless `--no-anneal` keeps it constant.
"""

from __future__ import annotations

import logging
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from agent import Agent, Settings, build
from envs import TASKS, MissingPackageError
from evaluation import Row, evaluate, illegal_actions, per_environment
from options import make_parser, read_settings
from progress import Log, plot, profile
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl import timeit
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import RewardSum, TransformedEnv

GLANCE = 64
"""Episodes of the evaluations during training."""

TERMS = ("loss_objective", "loss_critic", "loss_entropy")
LOSS_FIGURES = ("loss_objective", "loss_critic", "entropy", "kl_approx", "clip_fraction", "kl")
"""What is logged, of what a loss writes."""


# --- One run ---------------------------------------------------------------------------------


class TimedEnv(TransformedEnv):
    """An environment whose steps are timed by TorchRL's `timeit`."""

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> Any:
        with timeit("environment"):
            return super().step_and_maybe_reset(tensordict)


class TimedPolicy(TensorDictModuleBase):
    """A policy whose calls are timed by TorchRL's `timeit`."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy, self.in_keys, self.out_keys = policy, policy.in_keys, policy.out_keys

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        with timeit("acting"):
            return self.policy(tensordict)


class Run:
    """A run: its settings, folder, environments and agent, and how far it has come."""

    def __init__(self, settings: Settings, out: Path) -> None:
        self.settings, self.out = settings, out
        self.task = TASKS[settings["env"]]
        self.frames = settings["frames_per_batch"]
        self.iterations = math.ceil(settings["total_frames"] / self.frames)
        self.iteration = 0
        self.history: list[Row] = []
        rewards = [self.task.key("reward", group) for group in self.task.parts]
        returns = [self.task.key("episode_return", group) for group in self.task.parts]
        made = self.task.make(settings["num_envs"])
        self.env = TimedEnv(made, RewardSum(rewards, returns), auto_unwrap=True)
        self.eval_env = self.task.make(settings["num_envs"])
        torch.manual_seed(settings["seed"])
        self.agent = build(self.task, self.env, settings)

    def save(self) -> None:
        """Write the checkpoint under another name first: a crash never leaves half of one."""
        parts = {name: part.state_dict() for name, part in self.agent.parts().items()}
        state = {"settings": self.settings, "iteration": self.iteration, "history": self.history}
        torch.save(parts | state, self.out / "checkpoint.tmp")
        os.replace(self.out / "checkpoint.tmp", self.out / "checkpoint.pt")

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        for name, part in self.agent.parts().items():
            part.load_state_dict(checkpoint[name])
        self.iteration, self.history = checkpoint["iteration"], checkpoint["history"]

    def evaluate(self, episodes: int) -> Row:
        """Figures of the deterministic policy."""
        device = self.settings["device"]
        return evaluate(self.agent.actor, self.eval_env, self.task, episodes, device)


def train(run: Run) -> None:
    """Iterate up to the run's total; log every iteration, evaluate and save now and then."""
    settings = run.settings
    run.out.mkdir(parents=True, exist_ok=True)
    collector = make_collector(run)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(run.frames, device=settings["device"]),
        sampler=SamplerWithoutReplacement(),
        batch_size=settings["minibatch_size"],
    )
    log = Log(run)
    batches = iter(collector)
    start_segment(run, collector, buffer)
    while run.iteration < run.iterations:
        with timeit("iteration") as clock:
            row = iterate(run, next(batches), buffer)
            seconds = clock.elapsed()
        run.iteration += 1
        row |= {"frames": run.iteration * run.frames, "fps": run.frames / seconds}
        if run.iteration % settings["eval_every"] == 0:
            row |= run.evaluate(min(GLANCE, settings["eval_episodes"]))
        log.write(row)
        if run.iteration % settings["checkpoint_every"] == 0 or run.iteration == run.iterations:
            run.save()
            plot(run)
            start_segment(run, collector, buffer)
    log.close()
    collector.shutdown()


def make_collector(run: Run) -> Collector:
    """Environments on the CPU, policy and data on the run's device."""
    device = run.settings["device"]
    return Collector(
        run.env,
        TimedPolicy(run.agent.actor),
        frames_per_batch=run.frames,
        total_frames=-1,
        policy_device=device,
        storing_device=device,
        env_device="cpu",
        auto_register_policy_transforms=False,  # they are for recurrent policies
    )


def start_segment(run: Run, collector: Collector, buffer: ReplayBuffer) -> None:
    """Seed and reset everything random, as a function of (seed, iteration) alone."""
    seed = random.Random(f"{run.settings['seed']}-{run.iteration}").getrandbits(31)
    torch.manual_seed(seed)
    run.env.set_seed(seed)
    collector.reset()
    buffer.empty()  # its sampler draws the order of the next pass ahead of time


def iterate(run: Run, data: TensorDictBase, buffer: ReplayBuffer) -> Row:
    """One PPO iteration on one batch of experience."""
    settings, agent, task = run.settings, run.agent, run.task
    if settings["anneal"]:
        left = 1 - run.iteration / run.iterations
        agent.optimizer.param_groups[0]["lr"] = settings["lr"] * left
    with timeit("advantage"), torch.no_grad():
        agent.loss.estimate(data)
    row = {}
    if task.mask:
        illegal, choice = illegal_actions(data, task)
        row["illegal"] = (illegal.sum() / choice.sum()).item()
    finished = data["next", "done"].flatten()
    if finished.any():
        returns = per_environment(data["next"], task, "episode_return")
        row["return"] = returns.flatten()[finished].mean().item()
    # All that comes after the advantage is in the row itself.
    buffer.extend(data.exclude("next", "state").flatten())
    losses = [update(agent, batch, settings) for _ in range(settings["epochs"]) for batch in buffer]
    return row | {name: torch.stack([x[name] for x in losses]).mean().item() for name in losses[0]}


def update(agent: Agent, batch: TensorDictBase, settings: Settings) -> dict[str, Tensor]:
    """One gradient step."""
    with timeit("loss"):
        losses = agent.loss(batch)
        total = sum(losses[term] for term in TERMS)
    with timeit("backward"):
        agent.optimizer.zero_grad()
        total.backward()
    with timeit("optimizer"):
        # Each by itself: the size of one group's gradient must not scale another's.
        for loss in agent.losses.values():
            nn.utils.clip_grad_norm_(loss.parameters(), settings["max_grad_norm"])
        agent.optimizer.step()
    return figures(agent, losses.detach())


def figures(agent: Agent, losses: TensorDictBase) -> dict[str, Tensor]:
    """What is logged: `entropy`, or of a group `GROUP_entropy`."""
    found = {}
    for group in agent.losses:
        own, prefix = (losses[group], f"{group}_") if group else (losses, "")
        found |= {prefix + name: own[name] for name in LOSS_FIGURES if name in own.keys()}
    return found


# --- Command line ----------------------------------------------------------------------------


def summary(run: Run, row: Row, seconds: float) -> str:
    """One line: what was reached, and where the files are."""
    env, episodes = run.settings["env"], run.settings["eval_episodes"]
    reached = f"mean return {row['eval_return']:.2f}"
    if run.task.mask:
        reached += f", illegal actions {row['eval_illegal']:.2%}"
    if run.task.board_game:
        reached += f", wins {row['eval_wins']:.1%}, losses {row['eval_losses']:.1%}"
    effort = f"after {run.iteration * run.frames:,} frames; {seconds:.0f} s"
    kind = "drawn" if run.task.drawn else "deterministic"
    return f"{env}: {reached} ({episodes} {kind} episodes) {effort}; files in {run.out}"


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # its notes break the progress bar
    parser = make_parser()
    given = vars(parser.parse_args(argv))
    settings, checkpoint, out = read_settings(parser, given)
    start = time.perf_counter()
    timeit.erase()
    try:
        run = Run(settings, out)
        if checkpoint:
            run.load(checkpoint)
        first = run.iteration
        if not given.get("eval_only"):
            train(run)
        row = run.evaluate(settings["eval_episodes"])
    except MissingPackageError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        saved = (out / "checkpoint.pt").exists()
        advice = f"--resume {out} continues" if saved else "no checkpoint was reached"
        parser.exit(130, f"\n{parser.prog}: stopped; {advice}\n")
    if given.get("profile"):
        print(profile(timeit.todict(percall=False), (run.iteration - first) * run.frames))
    print(summary(run, row, time.perf_counter() - start))


if __name__ == "__main__":
    main()
