"""Train PPO with masked actions on any environment of `envs.py`.

    python examples/train.py                          # Taxi, a minute and a half on one core
    python examples/train.py --env tictactoe --seed 1 --out runs/ttt
    python examples/train.py --env taxi --no-mask     # what happens without the mask
    python examples/train.py --resume runs/ttt --eval-only --eval-episodes 1000

The run's folder gets `checkpoint.pt`, `curve.png`, and the log (`csv/` or `tensorboard/`).

A run that was stopped and resumed gives, bit for bit, the weights, the optimizer state and the log
of a run that never stopped (all but `fps`). Nothing inside an environment is saved for that:
a checkpoint, every `--checkpoint-every` iterations, starts a new segment, and a segment starts by
seeding torch and the environment from (seed, iteration) and resetting all environments,
whether or not the run was stopped there. A finished run continues with more `--total-frames`;
the learning rate then follows the new total, unless `--no-anneal` keeps it constant.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import pickle
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from envs import TASKS, MissingPackageError, Task, require
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import EnvBase, ExplorationType, RewardSum, TransformedEnv, set_exploration_type
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives.value import GAE
from torchrl.record.loggers import Logger

from tdheads import (
    ClipPPOLoss,
    KLPENPPOLoss,
    PolicyLoss,
    PPOLoss,
    SPOLoss,
    make_actor,
    make_head,
)

Settings = dict[str, Any]
Row = dict[str, float]

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
    "hidden": 64,
    "logger": "csv",
    "eval_every": 10,
    "eval_episodes": 500,
    "checkpoint_every": 10,
}
"""What a task's own settings do not say. A checkpoint stores the settings of its run."""

RESUMABLE = {"total_frames", "device", "logger", "eval_episodes"}
"""Settings that may change when a run is resumed."""

GLANCE = 64
"""Episodes of the evaluations during training."""

LOSSES: dict[str, Callable[[Settings], tuple[type[PolicyLoss], Settings]]] = {
    "clip": lambda s: (ClipPPOLoss, {"clip_epsilon": s["clip_epsilon"]}),
    "ppo": lambda s: (PPOLoss, {}),
    "kl-penalty": lambda s: (KLPENPPOLoss, {}),
    "spo": lambda s: (SPOLoss, {"epsilon": s["clip_epsilon"]}),
}
"""Each loss and its own keywords."""

LOSS_FIGURES = ("loss_objective", "loss_critic", "entropy", "kl_approx", "clip_fraction", "kl")
"""What is logged, of what the loss writes."""


# --- Networks and loss -----------------------------------------------------------------------


class Network(nn.Module):
    """A task's `encode` in front of a tanh MLP."""

    def __init__(self, encode: Callable[..., Tensor], *mlp: Any, **options: Any) -> None:
        super().__init__()
        self.encode = encode
        self.mlp = MLP(*mlp, activation_class=nn.Tanh, **options)

    def forward(self, *observation: Tensor) -> Tensor:
        return self.mlp(self.encode(*observation))


@dataclass
class Agent:
    """What is trained, and what trains it."""

    actor: nn.Module
    critic: nn.Module
    loss: PolicyLoss
    advantage: GAE
    optimizer: torch.optim.Optimizer

    def parts(self) -> dict[str, Any]:
        """The parts that a checkpoint holds."""
        parts = {"actor": self.actor, "critic": self.critic, "optimizer": self.optimizer}
        return parts | {"loss": self.loss}  # for what the networks do not hold, such as beta


def build(task: Task, env: EnvBase, settings: Settings) -> Agent:
    """Actor and critic networks, the PPO loss, GAE and Adam."""
    hidden, device, in_keys = settings["hidden"], settings["device"], list(task.observation)
    sample = env.fake_tensordict()
    features = task.encode(*(sample[key] for key in in_keys)).shape[-1]

    body = Network(task.encode, features, hidden, num_cells=[hidden], activate_last_layer=True)
    backbone = TensorDictModule(body, in_keys, [task.key("hidden")])
    mask = {task.action: task.mask} if settings["mask"] else False
    head = make_head(env.full_action_spec, env.observation_spec, mask=mask, **task.head)
    actor = make_actor(backbone, head, in_key=task.key("hidden"), num_features=hidden).to(device)

    value = task.key("state_value")
    critic_body = Network(task.encode, features, 1, num_cells=[hidden, hidden])
    critic = ValueOperator(critic_body, in_keys, [value]).to(device)

    keys = {name: task.key(name) for name in ("reward", "done", "terminated", "advantage")}
    keys |= {"value": value, "value_target": task.key("value_target")}
    kind, own = LOSSES[settings["loss"]](settings)
    loss = kind(
        actor,
        critic,
        **own,
        entropy_coeff=settings["entropy_coeff"],
        normalize_advantage=True,
        loss_critic_type="smooth_l1",
    )
    loss.set_keys(**keys)
    advantage = GAE(gamma=settings["gamma"], lmbda=settings["lmbda"], value_network=critic)
    advantage.set_keys(**keys)
    optimizer = torch.optim.Adam(loss.parameters(), lr=settings["lr"], eps=1e-5)
    return Agent(actor, critic, loss, advantage, optimizer)


# --- Illegal actions, evaluation -------------------------------------------------------------


def illegal_actions(data: TensorDictBase, task: Task) -> tuple[Tensor, Tensor]:
    """Which rows hold an illegal action, and which had something to choose; both `[*B]`.

    Judged by the mask in the data, whether or not the policy was shown it.
    """
    action, mask = data[task.action].long(), data[task.mask].bool()
    if task.joint:  # a pair of choices is one choice out of the product
        sizes = mask.shape[data.ndim :]
        mask = mask.flatten(data.ndim)
        strides = [torch.Size(sizes[i + 1 :]).numel() for i in range(len(sizes))]
        action = (action * action.new_tensor(strides)).sum(-1)
    legal = mask.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    choice = mask.any(-1)
    rows = (*data.shape, -1)
    return (~legal & choice).reshape(rows).any(-1), choice.reshape(rows).any(-1)


@torch.no_grad()
def evaluate(agent: Agent, env: EnvBase, task: Task, episodes: int, device: str) -> Row:
    """Play `episodes` episodes with the deterministic policy.

    Every environment plays one episode per round: to count the first `episodes` that end would
    favour short ones. The seed is the same each time, and training's random state is untouched.
    """
    rounds = math.ceil(episodes / env.batch_size[0])
    scores, illegal, choices = [], 0, 0
    with torch.random.fork_rng(), set_exploration_type(ExplorationType.DETERMINISTIC):
        torch.manual_seed(1)
        env.set_seed(1)
        for _ in range(rounds):
            data = env.reset()
            score = torch.zeros(env.batch_size)
            playing = torch.ones(env.batch_size, dtype=torch.bool)
            while playing.any():
                data = agent.actor(data.to(device)).to(env.device)
                wrong, chose = illegal_actions(data, task)
                illegal += int((wrong & playing).sum())
                choices += int((chose & playing).sum())
                step, data = env.step_and_maybe_reset(data)
                score += step["next"][task.key("reward")].view_as(score) * playing
                playing &= ~step["next", "done"].view_as(playing)
            scores.append(score)
    returns = torch.cat(scores)[:episodes]
    row = {"eval_return": returns.mean().item(), "eval_illegal": illegal / choices}
    if task.board_game:
        row["eval_wins"] = (returns > 0).float().mean().item()
        row["eval_losses"] = (returns < 0).float().mean().item()
    return row


# --- One run ---------------------------------------------------------------------------------


class Run:
    """A run: its settings, folder, environments and agent, and how far it has come."""

    def __init__(self, settings: Settings, out: Path) -> None:
        self.settings, self.out = settings, out
        self.task = TASKS[settings["env"]]
        self.frames = settings["frames_per_batch"]
        self.iterations = math.ceil(settings["total_frames"] / self.frames)
        self.iteration = 0
        self.history: list[Row] = []
        env = self.task.make(settings["num_envs"])
        returns = RewardSum([self.task.key("reward")], [self.task.key("episode_return")])
        self.env = TransformedEnv(env, returns, auto_unwrap=True)
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
        return evaluate(self.agent, self.eval_env, self.task, episodes, self.settings["device"])


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
        start = time.perf_counter()
        row = iterate(run, next(batches), buffer)
        run.iteration += 1
        row |= {
            "frames": run.iteration * run.frames,
            "fps": run.frames / (time.perf_counter() - start),
        }
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
        run.agent.actor,
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
    with torch.no_grad():
        agent.advantage(data)
    illegal, choice = illegal_actions(data, task)
    finished = data["next", "done"].flatten()
    returns = data["next"][task.key("episode_return")].flatten()[finished]
    row = {"illegal": (illegal.sum() / choice.sum()).item()}
    if finished.any():
        row["return"] = returns.mean().item()
    # All that comes after the advantage is in the row itself.
    buffer.extend(data.exclude("next", "state").flatten())
    losses = [update(agent, batch, settings) for _ in range(settings["epochs"]) for batch in buffer]
    figures = losses[0].keys()
    return row | {name: torch.stack([x[name] for x in losses]).mean().item() for name in figures}


def update(agent: Agent, batch: TensorDictBase, settings: Settings) -> TensorDictBase:
    """One gradient step."""
    losses = agent.loss(batch)
    total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
    agent.optimizer.zero_grad()
    total.backward()
    nn.utils.clip_grad_norm_(agent.loss.parameters(), settings["max_grad_norm"])
    agent.optimizer.step()
    return losses.detach().select(*LOSS_FIGURES, strict=False)


# --- Log and curve ---------------------------------------------------------------------------


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


# --- Command line ----------------------------------------------------------------------------


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
    add("--eval-episodes", type=positive, help="episodes of the last evaluation")
    add("--eval-every", type=positive, help="iterations between the small evaluations")
    add("--checkpoint-every", type=positive, help="iterations between checkpoints")
    add("--logger", type=str, choices=["none", "csv", "tensorboard"])
    add("--device", type=str, help="of the networks; environments run on the CPU")
    add("--seed", type=int)
    add("--mask", action=flag, help="show the policy the mask, or not")
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
    add("--max-grad-norm", type=number)
    return parser


def read_settings(parser: Parser, given: Settings) -> tuple[Settings, dict[str, Any] | None, Path]:
    """Settings, checkpoint (when resuming) and folder, from the options that were given."""
    given = dict(given)
    resume, out = given.pop("resume", None), given.pop("out", None)
    if given.pop("eval_only", False) and not resume:
        parser.error("--eval-only needs --resume DIR, the folder of the run to evaluate")
    if resume and out:
        parser.error("--out cannot be given with --resume, which continues in the run's own folder")
    if resume:
        settings, checkpoint = read_checkpoint(parser, resume, given)
        out = resume
    else:
        env = str(given.get("env", DEFAULTS["env"]))
        settings, checkpoint = DEFAULTS | TASKS[env].settings | given, None
        out = out or Path("runs") / f"{settings['env']}-{settings['seed']}"
        if (out / "checkpoint.pt").exists():
            parser.error(f"{out} holds a run: --resume {out} continues it, --out names another")
    check(parser, settings)
    if not given.get("eval_only"):
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
    try:
        torch.empty(0, device=settings["device"])
    except (RuntimeError, AssertionError):
        parser.error(f"--device {settings['device']} is not available")


def summary(run: Run, row: Row, seconds: float) -> str:
    """One line: what was reached, and where the files are."""
    env, episodes = run.settings["env"], run.settings["eval_episodes"]
    reached = f"mean return {row['eval_return']:.2f}, illegal actions {row['eval_illegal']:.2%}"
    if run.task.board_game:
        reached += f", wins {row['eval_wins']:.1%}, losses {row['eval_losses']:.1%}"
    effort = f"after {run.iteration * run.frames:,} frames; {seconds:.0f} s"
    return f"{env}: {reached} ({episodes} deterministic episodes) {effort}; files in {run.out}"


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # its notes break the progress bar
    parser = make_parser()
    given = vars(parser.parse_args(argv))
    settings, checkpoint, out = read_settings(parser, given)
    start = time.perf_counter()
    try:
        run = Run(settings, out)
        if checkpoint:
            run.load(checkpoint)
        if not given.get("eval_only"):
            train(run)
        row = run.evaluate(settings["eval_episodes"])
    except MissingPackageError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        saved = (out / "checkpoint.pt").exists()
        advice = f"--resume {out} continues" if saved else "no checkpoint was reached"
        parser.exit(130, f"\n{parser.prog}: stopped; {advice}\n")
    print(summary(run, row, time.perf_counter() - start))


if __name__ == "__main__":
    main()
