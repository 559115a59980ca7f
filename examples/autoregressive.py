"""An autoregressive head against independent leaves, on Jumanji's BinPack.

    python examples/autoregressive.py          # three seeds of both, and runs/autoregressive.png
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

from typing import Any

import torch
from compare import Curve, draw, options, train
from envs import MissingPackageError
from envs.jumanji_games import BINPACK_OBSERVATION, binpack, encode_binpack
from tensordict import TensorDictBase
from torchrl.data import Binary, Categorical, Composite
from torchrl.envs import TransformedEnv
from torchrl.envs.transforms import Transform

from tdheads import CategoricalHead, CompositeHead

SPOTS, ITEMS, WIDTH = 40, 20, 128


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
        leaves = {"spot": Categorical(SPOTS), "item": Categorical(ITEMS)}
        input_spec["full_action_spec"] = Composite(
            {name: spec.expand(batch) for name, spec in leaves.items()}, shape=batch
        )
        return input_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        batch = observation_spec.shape
        for name, n in {"spot_mask": SPOTS, "item_mask": ITEMS}.items():
            observation_spec[name] = Binary(n, shape=(*batch, n), dtype=torch.bool)
        return observation_spec


HEADS: dict[str, Any] = {
    "autoregressive": lambda: CompositeHead(
        CategoricalHead("spot", SPOTS, mask=True),
        CategoricalHead("item", ITEMS, mask="action_mask", mask_given="spot", after=("spot",)),
        num_features=WIDTH,
    ),
    "independent": lambda: CompositeHead(
        CategoricalHead("spot", SPOTS, mask=True), CategoricalHead("item", ITEMS, mask=True)
    ),
}


def run(kind: str, seed: int, frames: int) -> Curve:
    torch.manual_seed(seed)
    env = TransformedEnv(binpack(64), Pair())
    keys = list(BINPACK_OBSERVATION)
    head = HEADS[kind]()
    return train(env, head, keys, encode_binpack, label=kind, seed=seed, frames=frames, width=WIDTH)


def main() -> None:
    chosen = options(
        "Autoregressive against independent leaves.", 80_000, "runs/autoregressive.png"
    )
    curves = {kind: [run(kind, seed, chosen.frames) for seed in chosen.seeds] for kind in HEADS}
    draw(curves, chosen.output, title="BinPack", ylabel="mean return (share of the container)")


if __name__ == "__main__":
    try:
        main()
    except MissingPackageError as error:
        raise SystemExit(str(error)) from None
