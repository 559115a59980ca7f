"""The command line of `train.py`, and the settings of a run that come out of it."""

from __future__ import annotations

import argparse
import math
import pickle
from pathlib import Path
from typing import Any, NoReturn

import torch
from agent import LOSSES, Settings
from envs import TASKS

DEFAULTS: Settings = {
    "env": "taxi",
    "loss": "clip",
    "seed": 0,
    "device": "cpu",
    "lr": 1e-3,
    "gamma": 0.99,
    "lmbda": 0.95,
    "epochs": 4,
    "minibatch_size": 512,
    "clip_epsilon": 0.2,
    "entropy_coeff": 0.01,
    "max_grad_norm": 0.5,
    "anneal": True,
    "mask": True,
    "share_params": True,
    "central_critic": False,
    "hidden": 64,
    "logger": "csv",
    "eval_every": 10,
    "eval_episodes": 500,
    "checkpoint_every": 10,
}
"""What a task's own settings do not say. A checkpoint stores the settings of its run."""

RESUMABLE = {"total_frames", "device", "logger", "eval_episodes"}
"""Settings that may change when a run is resumed."""

ACTIONS = ("resume", "out", "eval_only", "profile")
"""Options that say what to do, and are no settings of the run."""


class Parser(argparse.ArgumentParser):
    """Reports a bad argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def fraction(text: str) -> float:
    """A number in [0, 1]."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 1")
    return value


def number(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not a number of at least 0")
    return value


def make_parser() -> Parser:
    """All options; one that is not given takes the environment's or the run's own setting."""
    parser = Parser(
        prog="train.py",
        description="Train PPO with masked actions.",
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.MetavarTypeHelpFormatter,
    )
    add = parser.add_argument
    flag = argparse.BooleanOptionalAction
    add("--env", type=str, choices=TASKS, help=f"default: {DEFAULTS['env']}")
    add("--loss", type=str, choices=LOSSES, help=f"default: {DEFAULTS['loss']}")
    add("--out", type=Path, help="the run's folder; default: runs/ENV-SEED")
    add("--resume", type=Path, help="continue the run in this folder, with its settings")
    add("--eval-only", action="store_true", help="with --resume: evaluate, do not train")
    add("--profile", action="store_true", help="say at the end where the time of training went")
    add("--eval-episodes", type=positive, help="episodes of the last evaluation")
    add("--eval-every", type=positive, help="iterations between the small evaluations")
    add("--checkpoint-every", type=positive, help="iterations between checkpoints")
    add("--logger", type=str, choices=["none", "csv", "tensorboard"])
    add("--device", type=str, help="of the networks; environments run on the CPU")
    add("--seed", type=int)
    add("--mask", action=flag, help="show the policy the mask, or not")
    add("--share-params", action=flag, help="between the agents of a group")
    add("--central-critic", action=flag, help="whose input is what all agents of a group see")
    add("--total-frames", type=positive)
    add("--frames-per-batch", type=positive, help="a multiple of --num-envs")
    add("--num-envs", type=positive)
    add("--epochs", type=positive, help="passes over a batch")
    add("--minibatch-size", type=positive)
    add("--hidden", type=positive, help="width of the networks' two layers")
    add("--lr", type=number, help="learning rate of Adam")
    add("--anneal", action=flag, help="let the learning rate fall to 0")
    add("--gamma", type=fraction)
    add("--lmbda", type=fraction)
    add("--clip-epsilon", type=number, help="of --loss clip and spo")
    add("--entropy-coeff", type=number)
    add("--max-grad-norm", type=number, help="of each group's gradient")
    return parser


def read_settings(parser: Parser, given: Settings) -> tuple[Settings, dict[str, Any] | None, Path]:
    """Settings, checkpoint (when resuming) and folder, from the options that were given."""
    resume, out = given.get("resume"), given.get("out")
    chosen = {name: value for name, value in given.items() if name not in ACTIONS}
    if given.get("eval_only") and not resume:
        parser.error("--eval-only needs --resume DIR, the folder of the run to evaluate")
    if given.get("eval_only") and given.get("profile"):
        parser.error("--profile is of training, which --eval-only leaves out")
    if resume and out:
        parser.error("--out cannot be given with --resume, which continues in the run's own folder")
    if resume:
        settings, checkpoint = read_checkpoint(parser, resume, chosen)
        out = resume
    else:
        env = str(chosen.get("env", DEFAULTS["env"]))
        settings, checkpoint = DEFAULTS | TASKS[env].settings | chosen, None
        out = out or Path("runs") / f"{settings['env']}-{settings['seed']}"
        if (out / "checkpoint.pt").exists():
            parser.error(f"{out} holds a run: --resume {out} continues it, --out names another")
    check(parser, settings)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}")
    return settings, checkpoint, out


def read_checkpoint(
    parser: Parser, folder: Path, given: Settings
) -> tuple[Settings, dict[str, Any]]:
    """The checkpoint of a run, and its settings with those that may be changed."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        parser.error(f"--resume {folder}: there is no checkpoint.pt in it")
    try:
        checkpoint = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.PickleError) as error:
        parser.error(f"--resume {folder}: checkpoint.pt cannot be read ({error})".splitlines()[0])
    for name in given:
        if name not in RESUMABLE and given[name] != checkpoint["settings"][name]:
            option = name.replace("_", "-")
            parser.error(f"--{option} cannot change in a resumed run; leave it out")
    return checkpoint["settings"] | given, checkpoint


def check(parser: Parser, settings: Settings) -> None:
    """What has to fit together."""
    frames, envs = settings["frames_per_batch"], settings["num_envs"]
    if frames % envs:
        parser.error(f"--frames-per-batch {frames} is not a multiple of --num-envs {envs}")
    if settings["minibatch_size"] > frames:
        parser.error(f"--minibatch-size is larger than --frames-per-batch {frames}")
    for_groups = settings["central_critic"] or not settings["share_params"]
    if for_groups and not TASKS[settings["env"]].groups:
        parser.error(f"--central-critic and --no-share-params: {settings['env']} has no groups")
    try:
        torch.empty(0, device=settings["device"])
    except (RuntimeError, AssertionError):
        parser.error(f"--device {settings['device']} is not available")
