"""The same PPO training in one process, and in many: torchrun and DDP, TorchRL's collectors, Ray.

    python examples/distributed.py --engine single
    python examples/distributed.py --engine multiprocess --workers 2
    python examples/distributed.py --engine async --workers 2
    python examples/distributed.py --engine ray --workers 2
    torchrun --nproc-per-node 2 examples/distributed.py --engine ddp

`ddp` learns and acts in every process; the others learn here and act in the workers. Networks and
loss, and in sum the frames of an iteration, the environments and the rows of a minibatch, are the
same. Weights go to the workers after each iteration, so that the ratios of the first minibatch
are 1: the run stops if they are not. Only `async` learns while its workers act with older weights.

With `--out DIR` a checkpoint is written now and then, and the same command continues from it, also
with another engine. When a worker dies the run ends and says so. torchrun can start over by itself:

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 2 --max-restarts 3 \\
        examples/distributed.py --engine ddp --out runs/ddp

(Without the variable the new processes may look up the addresses of the dead ones and fail:
https://github.com/pytorch/pytorch/issues/135712.)

DDP's gradient is the mean over processes; all have as many rows, so that it is the gradient of the
joined minibatch. For this the advantages are normalised over the batch of all processes, and not
by the loss, which sees the rows of its own process only.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import sys
import time
from pathlib import Path

import torch
from agent import Settings, make_networks
from engines import (
    ENGINES,
    WITH_WORKERS,
    WorkerDied,
    make_collector,
    normalize,
    process_group,
    processes,
    raising_when_workers_die,
    rank,
    seed,
    shares,
    summed,
)
from envs import TASKS, MissingPackageError
from evaluation import illegal_actions
from options import DEFAULTS, Parser, positive
from tensordict import TensorDictBase
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrl.collectors import BaseCollector

from tdheads import ClipPPOLoss

Row = dict[str, float]

ENVS = [name for name, task in TASKS.items() if not task.groups]
"""Those with one actor."""


# --- Learning --------------------------------------------------------------------------------


class Learner:
    """What is trained, and how: the same for all engines."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.task = TASKS[settings["env"]]
        torch.manual_seed(settings["seed"])
        self.actor, critic = make_networks(self.task, self.task.make(1), settings, group=None)
        self.loss = ClipPPOLoss(
            self.actor,
            critic,
            functional=False,  # for DDP
            clip_epsilon=settings["clip_epsilon"],
            entropy_coeff=settings["entropy_coeff"],
            loss_critic_type="smooth_l1",
        )
        self.loss.make_value_estimator(gamma=settings["gamma"], lmbda=settings["lmbda"])
        alone = settings["engine"] != "ddp"
        self.replica = self.loss if alone else DistributedDataParallel(self.loss)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=settings["lr"], eps=1e-5)
        self.iteration = 0

    def learn(self, batch: TensorDictBase) -> Row:
        """One PPO iteration, and its figures."""
        self.loss.estimate(batch)
        normalize(batch["advantage"])
        row = self.figures(batch)
        rows = batch.exclude("next").flatten()
        size = self.settings["minibatch_size"] // processes()
        for _ in range(self.settings["epochs"]):
            for index in torch.randperm(len(rows)).split(size):
                losses = self.update(rows[index])
                row.setdefault("first_ratio", losses["max_ratio"].item())
        self.iteration += 1
        return row

    def update(self, rows: TensorDictBase) -> TensorDictBase:
        """One gradient step."""
        losses = self.replica(rows)
        self.optimizer.zero_grad()
        (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
        nn.utils.clip_grad_norm_(self.loss.parameters(), self.settings["max_grad_norm"])
        self.optimizer.step()
        return losses.detach()

    def figures(self, batch: TensorDictBase) -> Row:
        """Frames, mean return of the episodes that ended, and share of illegal actions."""
        wrong = illegal_actions(batch, self.task)[0]
        ended = batch["next", "done"]
        returns = batch["next", "episode_return"][ended]
        figures = [batch.numel(), wrong.sum(), returns.sum(), ended.sum()]
        total = torch.tensor([float(x) for x in figures], device=batch.device, dtype=torch.double)
        frames, illegal, score, episodes = summed(total).tolist()
        return {
            "frames": frames,
            "illegal": illegal / frames,
            "return": score / episodes if episodes else float("nan"),
        }

    def save(self, path: Path) -> None:
        """Write the checkpoint under another name first: a crash never leaves half of one."""
        state = {"env": self.settings["env"], "iteration": self.iteration}
        parts = {"loss": self.loss.state_dict(), "optimizer": self.optimizer.state_dict()}
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state | parts, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def load(self, path: Path) -> None:
        """Take over the state of a checkpoint."""
        state = torch.load(path, weights_only=True, map_location="cpu")
        if state["env"] != self.settings["env"]:
            sys.exit(f"{path} is of --env {state['env']}; --out names another folder")
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration = state["iteration"]


# --- One run ---------------------------------------------------------------------------------


def run(settings: Settings) -> None:
    """Train with one engine."""
    engine, out = settings["engine"], settings["out"]
    learner = Learner(settings)
    if out and (out / "checkpoint.pt").exists():
        learner.load(out / "checkpoint.pt")
    collector = make_collector(learner.actor, settings)
    try:
        with raising_when_workers_die(engine, collector):
            train(learner, collector, settings)
    except WorkerDied as death:
        advice = f"the same command continues from {out}" if out else "--out saves checkpoints"
        sys.exit(f"distributed.py: {death}; {advice}")
    finally:
        collector.shutdown()


def train(learner: Learner, collector: BaseCollector, settings: Settings) -> None:
    """Iterate up to the total; report and save now and then."""
    engine, out = settings["engine"], settings["out"]
    iterations = math.ceil(settings["total_frames"] / settings["frames_per_batch"])
    number = random.Random(f"{settings['seed']}-{learner.iteration}-{rank()}").getrandbits(31)
    seed(collector, number)
    torch.manual_seed(number)
    batches, frames, start = iter(collector), 0.0, 0.0
    line = f"all {settings['total_frames']} frames were trained on before"
    while learner.iteration < iterations:
        if engine in WITH_WORKERS:
            collector.update_policy_weights_()
        row = learner.learn(next(batches).to(settings["device"]))
        if engine != "async" and abs(row["first_ratio"] - 1) > 1e-3:
            sys.exit(f"first ratio {row['first_ratio']}: the workers act with old weights")
        # The first iteration starts things up: it does not count.
        frames, start = (frames + row["frames"], start) if start else (0, time.perf_counter())
        row["fps"] = frames / (time.perf_counter() - start)
        line = summary(learner.iteration * settings["frames_per_batch"], row)
        last = learner.iteration == iterations
        if rank() == 0:
            if out and (last or learner.iteration % settings["checkpoint_every"] == 0):
                learner.save(out / "checkpoint.pt")
            print(f"iteration {learner.iteration}: {line}", flush=True)
    if rank() == 0:
        print(f"{engine}: {line}", flush=True)


def summary(frames: int, row: Row) -> str:
    return (
        f"{frames} frames, {row['fps']:.0f} frames/s, return {row['return']:.2f}, "
        f"illegal actions {row['illegal']:.2%}, first ratio {row['first_ratio']:.4f}"
    )


# --- Command line ----------------------------------------------------------------------------


def read_settings(argv: list[str] | None) -> Settings:
    """The settings that `train.py` has for the environment, and what was given."""
    parser = Parser(
        prog="distributed.py",
        description="PPO in one process or in many.",
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("--engine", choices=ENGINES, required=True, help="ddp is started by torchrun")
    add("--workers", type=positive, default=2, help="of multiprocess, async and ray; default: 2")
    add("--env", choices=ENVS, default="taxi", help="default: taxi")
    add("--out", type=Path, default=None, help="folder of the checkpoint: to write, to continue")
    add("--device", choices=["cpu", "cuda"], help="of the learner; workers act on the CPU")
    add("--seed", type=int)
    add("--total-frames", type=positive)
    add("--frames-per-batch", type=positive, help="in all processes")
    add("--num-envs", type=positive, help="in all processes; async: in each")
    add("--minibatch-size", type=positive, help="in all processes")
    add("--checkpoint-every", type=positive, help="iterations")
    settings = vars(parser.parse_args(argv))
    settings = DEFAULTS | TASKS[settings["env"]].settings | settings
    if settings["engine"] == "ddp" and "WORLD_SIZE" not in os.environ:
        parser.error("ddp needs torchrun --nproc-per-node 2 examples/distributed.py --engine ddp")
    units = {"num_envs": shares(settings), "frames_per_batch": settings["num_envs"]}
    for name, unit in units.items():
        if settings[name] % unit:
            parser.error(f"{name} {settings[name]} is not a multiple of {unit}")
    return settings


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    torch.set_num_threads(1)
    logging.getLogger("torchrl").setLevel(logging.ERROR)
    settings = read_settings(argv)
    try:
        with process_group(settings):
            run(settings)
    except MissingPackageError as error:
        sys.exit(f"distributed.py: {error}")


if __name__ == "__main__":
    main()
