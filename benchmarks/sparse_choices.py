"""Chess, 29,275 moves: the dense mask against the list of legal moves, forward and backward.

    python benchmarks/sparse_choices.py

Positions come from random legal play in TorchRL's ChessEnv. Both actors share their last layer, so
both losses are the same number. Times are medians of runs in alternating order; memory is what
autograd saves for the backward pass, and the gradient of the last layer, which both need.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs import ChessEnv

from tdheads import CategoricalHead, ClipPPOLoss, SparseCategoricalHead, make_actor
from tdheads.distributions import legal_index

FEATURES, MAX_LEGAL = 64, 218  # no chess position has more than 218 legal moves


def positions(count: int) -> Tensor:
    """Legal moves of positions of random play, `[count, 29275]`."""
    env = ChessEnv()
    td = env.rollout(count, break_when_any_done=False)
    return td["action_mask"][:count]


def saved_bytes(fn: Callable[[], Tensor]) -> int:
    """Bytes of the tensors that autograd keeps for the backward pass, each storage once."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        fn()
    return sum(kept.values())


def step(loss: ClipPPOLoss, td: TensorDict) -> Callable[[], Tensor]:
    def run() -> Tensor:
        out = loss(td)
        return out["loss_objective"] + out["loss_entropy"]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="Dense mask against list of legal moves.")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    mask = positions(options.batch)
    td = TensorDict({"observation": torch.randn(options.batch, FEATURES)}, [options.batch])
    td["action_mask"], td["action_legal"] = mask, legal_index(mask, MAX_LEGAL)
    body = TensorDictModule(nn.Linear(FEATURES, FEATURES), ["observation"], ["hidden"])
    n = mask.shape[-1]
    heads: dict[str, Any] = {
        "dense": CategoricalHead("action", n, mask=True, validate=False),
        "sparse": SparseCategoricalHead("action", n, MAX_LEGAL, validate=False),
    }
    actors = {name: make_actor(body, head, num_features=FEATURES) for name, head in heads.items()}
    linear, gathered = actors["dense"][1].module[0], actors["sparse"][1].module
    linear.weight, linear.bias = gathered.weight, gathered.bias
    with torch.no_grad():
        td = actors["sparse"](td)
    td["advantage"] = torch.randn(options.batch, 1)
    steps = {
        name: step(ClipPPOLoss(actor, None, functional=False), td.exclude("action_logits"))
        for name, actor in actors.items()
    }
    values = {name: run().item() for name, run in steps.items()}
    assert abs(values["dense"] - values["sparse"]) < 1e-5, values

    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats):
        for name, run in steps.items():
            start = time.perf_counter()
            run().backward()
            times[name].append(time.perf_counter() - start)
    print(f"batch {options.batch}, {n} moves, {mask.sum(-1).float().mean():.0f} legal on average")
    print("| | saved for backward | forward + backward |\n| --- | --- | --- |")
    for name, run in steps.items():
        size, median = saved_bytes(run) / 2**20, statistics.median(times[name]) * 1e3
        print(f"| {name} | {size:.1f} MiB | {median:.1f} ms |")


if __name__ == "__main__":
    main()
