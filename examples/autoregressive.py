"""An autoregressive head against independent leaves, on Jumanji's BinPack.

    python examples/autoregressive.py          # three seeds of both, and docs/autoregressive.png
    python examples/autoregressive.py --seeds 0 --frames 20000

Every step puts one of 20 items into one of 40 free spots. Which items fit depends on the spot: the
mask `[40, 20]` is joint. Both policies first pick a spot that some item fits into.

* autoregressive: the item is picked given the spot, from the row of the mask that belongs to it
  (`mask_given`), with logits that depend on it (`after`): every pair is legal.
* independent: the item is picked among those that fit somewhere. No two masks can say which pairs
  are legal, and a pair that is not ends the episode.

Same networks, same loss, same settings.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import torch
from envs import BINPACK_OBSERVATION, binpack, encode_binpack
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import Binary, Categorical, Composite
from torchrl.envs import EnvBase, RewardSum, TransformedEnv
from torchrl.envs.transforms import Transform
from torchrl.modules import MLP
from torchrl.objectives.value import GAE

from tdheads import CategoricalHead, ClipPPOLoss, CompositeHead, Head, make_actor

matplotlib.use("Agg")
from matplotlib import pyplot

SPACES, ITEMS, WIDTH = 40, 20, 128
NUM_ENVS, BATCH, EPOCHS, MINIBATCH = 64, 4096, 4, 512


class Pair(Transform):
    """Show the pair (spot, item) as two leaves, and the joint mask as theirs."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = next_tensordict["action_mask"]
        next_tensordict["spot_mask"] = mask.any(-1)
        next_tensordict["item_mask"] = mask.any(-2)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, reset: TensorDictBase) -> TensorDictBase:
        return self._call(reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        pair = torch.stack([tensordict["spot"], tensordict["item"]], -1)
        tensordict["action"] = pair.to(self.parent.full_action_spec["action"].dtype)
        return tensordict

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        batch = input_spec.shape
        leaves = {"spot": Categorical(SPACES), "item": Categorical(ITEMS)}
        input_spec["full_action_spec"] = Composite(
            {name: spec.expand(batch) for name, spec in leaves.items()}, shape=batch
        )
        return input_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        batch = observation_spec.shape
        for name, n in {"spot_mask": SPACES, "item_mask": ITEMS}.items():
            observation_spec[name] = Binary(n, shape=(*batch, n), dtype=torch.bool)
        return observation_spec


HEADS: dict[str, Any] = {
    "autoregressive": lambda: CompositeHead(
        CategoricalHead("spot", SPACES, mask=True),
        CategoricalHead("item", ITEMS, mask="action_mask", mask_given="spot", after=("spot",)),
        num_features=WIDTH,
    ),
    "independent": lambda: CompositeHead(
        CategoricalHead("spot", SPACES, mask=True), CategoricalHead("item", ITEMS, mask=True)
    ),
}


class Net(nn.Module):
    def __init__(self, features: int, out: int) -> None:
        super().__init__()
        self.mlp = MLP(features, out, num_cells=[WIDTH, WIDTH], activation_class=nn.Tanh)

    def forward(self, *entries: Tensor) -> Tensor:
        return self.mlp(encode_binpack(*entries))


def build(env: EnvBase, head: Head) -> tuple[nn.Module, nn.Module]:
    keys = list(BINPACK_OBSERVATION)
    sample = env.fake_tensordict()
    features = encode_binpack(*(sample[key] for key in keys)).shape[-1]
    body = TensorDictModule(Net(features, WIDTH), keys, ["hidden"])
    critic = TensorDictModule(Net(features, 1), keys, ["state_value"])
    return make_actor(body, head, num_features=WIDTH), critic


def train(kind: str, seed: int, frames: int) -> list[tuple[int, float]]:
    """Frames and mean episode return (share of the container that is filled) of every batch."""
    torch.manual_seed(seed)
    env = TransformedEnv(TransformedEnv(binpack(NUM_ENVS), Pair()), RewardSum())
    env.set_seed(seed)
    actor, critic = build(env, HEADS[kind]())
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.005, normalize_advantage=True)
    advantage = GAE(gamma=1.0, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3, eps=1e-5)
    collector = Collector(
        env,
        actor,
        frames_per_batch=BATCH,
        total_frames=frames,
        auto_register_policy_transforms=False,
    )
    curve: list[tuple[int, float]] = []
    for data in collector:
        with torch.no_grad():
            advantage(data)
        done = data["next", "done"].flatten()
        score = data["next", "episode_reward"].flatten()[done].mean().item()
        curve.append(((len(curve) + 1) * BATCH, score))
        rows = data.exclude("next").reshape(-1)
        for _ in range(EPOCHS):
            for index in torch.randperm(len(rows)).split(MINIBATCH):
                out = loss(rows[index])
                optimizer.zero_grad()
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        print(f"{kind} seed {seed}: {curve[-1][0]:>7} frames, mean return {score:.3f}", flush=True)
    collector.shutdown()
    return curve


def draw(curves: dict[str, list[list[tuple[int, float]]]], output: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for kind, runs in curves.items():
        frames = [point[0] for point in runs[0]]
        returns = torch.tensor([[point[1] for point in run] for run in runs])
        axes.plot(frames, returns.mean(0), label=kind)
        low, high = returns.amin(0), returns.amax(0)
        axes.fill_between(frames, low, high, alpha=0.25)
    axes.set(xlabel="frames", ylabel="mean return (share of the container)")
    axes.set_title(f"BinPack, PPO, {len(runs)} seeds (line: mean, area: range)")
    axes.legend()
    figure.tight_layout()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    print(f"wrote {output}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Autoregressive against independent leaves.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--frames", type=int, default=80_000)
    parser.add_argument("--output", type=Path, default=Path("docs/autoregressive.png"))
    options = parser.parse_args()
    curves = {kind: [train(kind, seed, options.frames) for seed in options.seeds] for kind in HEADS}
    draw(curves, options.output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
