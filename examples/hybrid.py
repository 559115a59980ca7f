"""A hybrid action whose number depends on the choice beside it: golf, from `envs/golf.py`.

    python examples/hybrid.py          # three seeds of both, and runs/hybrid.png
    python examples/hybrid.py --seeds 0 --frames 20000

The action is a club, of which the lie allows some, and a swing in [-1, 1]. How hard to swing
depends on the club: a full swing of the driver flies ten times as far as one of the putter.

* swing after club: `after=(("action", "club"),)` gives the swing's head the club that was drawn.
* swing beside club: both are drawn from the observation alone.

The gap is small here, about a quarter of a stroke: where the ball lies tells most of the club.

Same networks, same loss, same settings.
"""

from __future__ import annotations

from typing import Any

import torch
from compare import Curve, draw, options, train
from envs.golf import golf

from tdheads import CategoricalHead, CompositeHead, TanhNormalHead

CLUB, SWING, WIDTH = ("action", "club"), ("action", "swing"), 64


def head(**dependence: Any) -> CompositeHead:
    return CompositeHead(
        CategoricalHead(CLUB, 3, mask="club_mask"),
        TanhNormalHead(SWING, -1.0, 1.0, shape=(1,), **dependence),
        num_features=WIDTH,
    )


HEADS: dict[str, Any] = {"swing after club": {"after": (CLUB,)}, "swing beside club": {}}


def run(kind: str, seed: int, frames: int) -> Curve:
    torch.manual_seed(seed)
    return train(
        golf(128),
        head(**HEADS[kind]),
        ["observation"],
        lambda observation: observation,
        label=kind,
        seed=seed,
        frames=frames,
        width=WIDTH,
        gamma=0.99,
    )


def main() -> None:
    chosen = options(
        "A swing that knows the club against one that does not.", 200_000, "runs/hybrid.png"
    )
    curves = {kind: [run(kind, seed, chosen.frames) for seed in chosen.seeds] for kind in HEADS}
    draw(curves, chosen.output, title="Golf", ylabel="mean return (minus strokes)")


if __name__ == "__main__":
    main()
