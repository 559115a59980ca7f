"""PPO with memory: an LSTM or a GRU under a masked multi-discrete head, on the round of `canon.py`.

    python examples/recurrent.py          # all three, three seeds of each, and runs/recurrent.png
    python examples/recurrent.py --cell lstm --seeds 0

A run takes half a minute of one core. `--cell none` is the same policy without memory. Four things
make a recurrent PPO right:

* Actor and critic share the cell (`body`), so the state that the collector stores at every step is
  that of both. A critic with a cell of its own would have to act along, or its state is nowhere.
* `auto_register_policy_transforms=True` lets the collector add TorchRL's `InitTracker` (which marks
  the first step of an episode, `is_init`) and `TensorDictPrimer` (the first state, zeros).
* The replay buffer hands out pieces of one episode each. `pad_output=True` fills the short ones up
  and marks the rows that are real in ("collector", "mask"), where the loss looks by itself. Of a
  buffer only the class `TensorDictReplayBuffer` passes the mark on.
* The loss, and its `estimate`, run the cell over time, from the state that is stored at the first
  step of a row and wherever `is_init` is set. The advantage is computed before the pieces are cut:
  their ends are no ends of episodes.
"""

from __future__ import annotations

import torch
from canon import CanonEnv
from compare import Curve, arguments, draw
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from tensordict.nn import TensorDictSequential as Sequence
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import ExplorationType, RewardSum, TransformedEnv, set_exploration_type
from torchrl.modules import MLP, GRUModule, LSTMModule
from torchrl.modules.utils import get_env_transforms_from_module
from tqdm import tqdm

from tdheads import ClipPPOLoss, make_actor, make_head

WIDTH, ENVS, FRAMES = 64, 128, 4096
"""Features of the body, environments, frames per batch."""
SLICES, LENGTH, EPOCHS = 32, CanonEnv.LONGEST, 4
"""Pieces in a minibatch, steps of a piece, passes over a batch (of as many rows)."""
LABELS = {"lstm": "LSTM", "gru": "GRU", "none": "without memory"}


def body(cell: str) -> TensorDictModuleBase:
    """The note that is heard -> features at "hidden"."""
    if cell == "none":
        net = MLP(CanonEnv.NOTES, WIDTH, num_cells=[WIDTH], activate_last_layer=True)
        return TensorDictModule(net, ["observation"], ["hidden"])
    kind = {"lstm": LSTMModule, "gru": GRUModule}[cell]
    return kind(CanonEnv.NOTES, WIDTH, in_key="observation", out_key="hidden")


def build(cell: str, env: CanonEnv) -> ClipPPOLoss:
    """The loss, which holds actor and critic."""
    shared = body(cell)
    head = make_head(env.full_action_spec, env.observation_spec)  # three choices, three masks
    value = TensorDictModule(nn.Linear(WIDTH, 1), ["hidden"], ["state_value"])
    actor = make_actor(shared, head, num_features=WIDTH)
    loss = ClipPPOLoss(actor, Sequence(shared, value), normalize_advantage=True)
    loss.make_value_estimator("gae", gamma=0.5, lmbda=0.9)
    return loss


def update(
    loss: ClipPPOLoss, optimizer: torch.optim.Optimizer, buffer: TensorDictReplayBuffer
) -> None:
    """A minibatch: padded pieces of episodes, one a row."""
    out = loss(buffer.sample().reshape(SLICES, LENGTH))
    optimizer.zero_grad()
    (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
    optimizer.step()


def train(cell: str, seed: int, frames: int) -> tuple[Curve, float]:
    """The mean return of the tunes that ended in each batch, and that of the trained policy."""
    torch.manual_seed(seed)
    env = CanonEnv(ENVS)
    loss = build(cell, env)
    actor = loss.actor_network
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3, eps=1e-5)
    env.set_seed(seed)
    collector = Collector(
        TransformedEnv(env, RewardSum()),
        actor,
        frames_per_batch=FRAMES,
        total_frames=frames,
        auto_register_policy_transforms=True,
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES),
        sampler=SliceSampler(
            slice_len=LENGTH,
            traj_key=("collector", "traj_ids"),
            strict_length=False,
            pad_output=True,
            cache_values=True,
        ),
        batch_size=SLICES * LENGTH,
    )
    curve: Curve = []
    bar = tqdm(total=frames, unit="frames", desc=f"{LABELS[cell]}, seed {seed}")
    for data in collector:
        curve.append(((len(curve) + 1) * FRAMES, finished(data)))
        buffer.extend(loss.estimate(data).reshape(-1))
        for _ in range(EPOCHS * FRAMES // (SLICES * LENGTH)):
            update(loss, optimizer, buffer)
        bar.update(FRAMES)
        bar.set_postfix({"return": f"{curve[-1][1]:.1f}"})
    bar.close()
    collector.shutdown()
    return curve, evaluate(actor)[0]


def finished(data: TensorDictBase) -> float:
    """Mean return of the tunes that ended in a batch."""
    return data["next", "episode_reward"][data["next", "done"]].mean().item()


@torch.no_grad()
def evaluate(
    actor: TensorDictModuleBase, kind: ExplorationType = ExplorationType.MODE
) -> tuple[float, float]:
    """Right notes and notes to sing, per tune, in 2,000 new tunes, the same for every policy."""
    env = TransformedEnv(CanonEnv(2000), get_env_transforms_from_module(actor))
    env.set_seed(1)
    with set_exploration_type(kind):
        data = env.rollout(CanonEnv.LONGEST, actor, break_when_any_done=False)
    done = data["next", "done"].int()
    first = done.cumsum(1) - done == 0  # the first tune of each environment
    right = data["next", "reward"] * first
    notes = (data["state", "targets"] > 0) * first
    return right.sum().item() / len(data), notes.sum().item() / len(data)


def chance() -> tuple[float, float]:
    """The same for choices that are uniform over the legal ones: a policy without weights."""
    torch.manual_seed(0)
    env = CanonEnv(1)
    head = make_head(env.full_action_spec, env.observation_spec)
    actor = make_actor(body("none"), head, num_features=WIDTH, gain=0.0)
    return evaluate(actor, ExplorationType.RANDOM)


def main(words: list[str] | None = None) -> None:
    parser = arguments("PPO with memory and without on a round.", 65_536, "runs/recurrent.png")
    parser.add_argument("--cell", choices=LABELS, nargs="+", default=list(LABELS))
    chosen = parser.parse_args(words)
    right, notes = chance()
    lines = [f"right notes of {notes:.2f} per tune, by chance: {right:.2f}"]
    curves: dict[str, list[Curve]] = {}
    for cell in chosen.cell:
        runs = [train(cell, seed, chosen.frames) for seed in chosen.seeds]
        curves[LABELS[cell]] = [curve for curve, _ in runs]
        lines.append(f"{LABELS[cell]}: " + ", ".join(f"{score:.2f}" for _, score in runs))
    bounds = {"most without memory": CanonEnv.MEMORYLESS, "all": CanonEnv.BEST}
    draw(curves, chosen.output, title="A round", ylabel="right notes per tune", bounds=bounds)
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
