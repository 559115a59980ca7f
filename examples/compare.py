"""What the shorter scripts share: a short PPO loop, a picture of runs, arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, RewardSum, TransformedEnv
from torchrl.modules import MLP
from torchrl.objectives.value import GAE

from tdheads import ClipPPOLoss, Head, make_actor

matplotlib.use("Agg")
from matplotlib import pyplot

Curve = list[tuple[int, float]]
"""Frames, and the mean return of the episodes that ended in a batch."""


class Net(nn.Module):
    """`encode` in front of a small tanh MLP."""

    def __init__(self, encode: Callable[..., Tensor], features: int, out: int, width: int) -> None:
        super().__init__()
        self.encode = encode
        self.mlp = MLP(features, out, num_cells=[width, width], activation_class=nn.Tanh)

    def forward(self, *entries: Tensor) -> Tensor:
        return self.mlp(self.encode(*entries))


def train(
    env: EnvBase,
    head: Head,
    keys: list[Any],
    encode: Callable[..., Tensor],
    *,
    label: str,
    seed: int,
    frames: int,
    width: int = 128,
    batch: int = 4096,
    epochs: int = 4,
    minibatch: int = 512,
    gamma: float = 1.0,
    lr: float = 1e-3,
    entropy_coeff: float = 0.005,
) -> Curve:
    """Train PPO on a batched environment; the head reads `width` features at "hidden"."""
    env = TransformedEnv(env, RewardSum())
    env.set_seed(seed)
    sample = env.fake_tensordict()
    features = encode(*(sample[key] for key in keys)).shape[-1]
    body = TensorDictModule(Net(encode, features, width, width), keys, ["hidden"])
    critic = TensorDictModule(Net(encode, features, 1, width), keys, ["state_value"])
    actor = make_actor(body, head, num_features=width)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=entropy_coeff, normalize_advantage=True)
    advantage = GAE(gamma=gamma, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=lr, eps=1e-5)
    collector = Collector(
        env,
        actor,
        frames_per_batch=batch,
        total_frames=frames,
        auto_register_policy_transforms=False,
    )
    curve: Curve = []
    for data in collector:
        with torch.no_grad():
            advantage(data)
        done = data["next", "done"].flatten()
        score = data["next", "episode_reward"].flatten()[done].mean().item()
        curve.append(((len(curve) + 1) * batch, score))
        rows = data.exclude("next").reshape(-1)
        for _ in range(epochs):
            for index in torch.randperm(len(rows)).split(minibatch):
                out = loss(rows[index])
                optimizer.zero_grad()
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        print(f"{label} seed {seed}: {curve[-1][0]:>7} frames, mean return {score:.3f}", flush=True)
    collector.shutdown()
    return curve


def draw(
    curves: dict[str, list[Curve]],
    output: Path,
    *,
    title: str,
    ylabel: str,
    bounds: Mapping[str, float] | None = None,
) -> None:
    """One line per label, the mean over its runs, with their range as an area; bounds dotted."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for label, runs in curves.items():
        frames = [point[0] for point in runs[0]]
        returns = torch.tensor([[point[1] for point in run] for run in runs])
        axes.plot(frames, returns.mean(0), label=label)
        axes.fill_between(frames, returns.amin(0), returns.amax(0), alpha=0.25)
    for label, height in (bounds or {}).items():
        axes.axhline(height, color="grey", linewidth=0.8, linestyle=":", label=label)
    axes.set(xlabel="frames", ylabel=ylabel)
    axes.set_title(f"{title}, PPO, {len(runs)} seeds (line: mean, area: range)")
    axes.legend()
    figure.tight_layout()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    print(f"wrote {output}")


def options(description: str, frames: int, output: str) -> argparse.Namespace:
    """The command line of a script that needs no other arguments."""
    return arguments(description, frames, output).parse_args()


def arguments(description: str, frames: int, output: str) -> argparse.ArgumentParser:
    """The arguments of all scripts."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--frames", type=int, default=frames)
    parser.add_argument("--output", type=Path, default=Path(output))
    return parser
