"""The action spaces of the benchmarks: the head, its leaves in plain PyTorch, what peers have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torchrl.modules import IndependentNormal, MaskedCategorical

from benchmarks.leaves import After, AfterNet, Batch, Choice, Choices, Leaf, Listed, Normal
from benchmarks.peers import TorchRL
from benchmarks.reference import positive
from tdheads import (
    CategoricalHead,
    CompositeHead,
    Head,
    MultiCategoricalHead,
    NormalHead,
    SparseCategoricalHead,
)

AGENTS = 5
NVEC = (3, 5, 2, 9, 4, 7, 2, 6)
MOVES, LEGAL = 29_275, 218  # chess: moves there are, and the most that a position has


@dataclass(frozen=True)
class Space:
    """One action space.

    Args:
        head: the head of tdheads.
        leaves: the same in plain PyTorch, with copies of the networks of the head.
        masks: mask entries of a batch.
        torchrl: the same in TorchRL.
        nvec: number of options per dimension, for the distributions of SB3-contrib.
        agents: further batch dims.
        batches: batch sizes that fit into memory.
    """

    head: Callable[[], Head]
    leaves: Callable[[Head], list[Leaf]]
    masks: Callable[[Sequence[int]], Batch]
    torchrl: TorchRL | None = None
    nvec: tuple[int, ...] = ()
    agents: tuple[int, ...] = ()
    batches: tuple[int, ...] = (1, 64, 256, 4096)

    @property
    def torchrl_losses(self) -> tuple[str, ...]:
        """The losses that TorchRL has for the space; its KL draws a sample that a mask refuses."""
        if self.torchrl is None:
            return ()
        return ("ppo", "clip", "klpen") if len(self.torchrl.kinds) == 1 else ("ppo", "clip")

    def impls(self, *, sb3: bool = False) -> list[str]:
        """Return the implementations that there are, ours first."""
        found = ["tdheads", "plain"]
        found += ["torchrl"] if self.torchrl else []
        found += ["sb3"] if sb3 and self.nvec and find_spec("sb3_contrib") else []
        return found


def legal(batch: Sequence[int], n: int) -> Tensor:
    """Random masks: half of the choices and the first one."""
    mask = torch.rand(*batch, n) < 0.5
    mask[..., 0] = True
    return mask


def mixed(count: int) -> Space:
    """Return masked choices of 8 and of 32 and a continuous leaf of two dims, in turn."""
    keys = {f"leaf{i}": (8, 32, 0)[i % 3] for i in range(count)}
    heads = [
        (lambda key=key, n=n: CategoricalHead(key, n, mask=True, validate=False))
        if n
        else (lambda key=key: NormalHead(key, (2,), validate=False))
        for key, n in keys.items()
    ]
    names = [
        (key, name)
        for key, n in keys.items()
        for name in (("logits", "mask") if n else ("loc", "scale"))
    ]

    def prepare(*tensors: Tensor) -> tuple[Tensor, ...]:
        named = zip(names, tensors, strict=True)
        return tuple(positive(x) if name == "scale" else x for (_, name), x in named)

    return Space(
        head=lambda: CompositeHead(*(make() for make in heads)),
        leaves=lambda _: [Choice(key) if n else Normal(key) for key, n in keys.items()],
        masks=lambda batch: {f"{key}_mask": legal(batch, n) for key, n in keys.items() if n},
        torchrl=TorchRL(
            {key: MaskedCategorical if n else IndependentNormal for key, n in keys.items()},
            [f"{key}_{name}" for key, name in names],
            names,
            prepare,
        ),
    )


def dimensions(nvec: Sequence[int]) -> Space:
    """Return several choices in one leaf; TorchRL has one leaf for each."""
    nvec = tuple(nvec)
    dims = [f"dim{i}" for i in range(len(nvec))]

    def prepare(logits: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (*logits.split(nvec, -1), *mask.split(nvec, -1))

    return Space(
        head=lambda: MultiCategoricalHead("action", nvec, mask=True, validate=False),
        leaves=lambda _: [Choices("action", nvec)],
        masks=lambda batch: {"action_mask": torch.cat([legal(batch, n) for n in nvec], -1)},
        torchrl=TorchRL(
            dict.fromkeys(dims, MaskedCategorical),
            ["action_logits", "action_mask"],
            [(dim, name) for name in ("logits", "mask") for dim in dims],
            prepare,
        ),
        nvec=nvec,
    )


def one_choice(n: int, agents: tuple[int, ...] = (), **space: tuple[int, ...]) -> Space:
    """Return one masked choice, of each agent."""
    names = [("action", "logits"), ("action", "mask")]
    keys = ["action_logits", "action_mask"]
    return Space(
        head=lambda: CategoricalHead("action", n, mask=True, validate=False),
        leaves=lambda _: [Choice("action")],
        masks=lambda batch: {"action_mask": legal(batch, n)},
        torchrl=TorchRL({"action": MaskedCategorical}, keys, names),
        agents=agents,
        **space,
    )


def listed_moves(batch: Sequence[int]) -> Batch:
    """Return lists of 20 to 218 distinct moves, padded with -1."""
    stride = torch.arange(LEGAL) * (MOVES // LEGAL)
    moves = stride + torch.randint(MOVES // LEGAL, (*batch, LEGAL))
    count = torch.randint(20, LEGAL + 1, (*batch, 1))
    return {"action_legal": moves.masked_fill(torch.arange(LEGAL) >= count, -1)}


def plain_chain(head: Head) -> list[Leaf]:
    """Return the leaves of `chain` with copies of the networks of the head."""
    leaves: list[Leaf] = []
    for leaf in head.leaves:
        key = leaf.action_key
        if key not in head.modules_after:
            leaves.append(Choice(key))
            continue
        net = copy.deepcopy(head.modules_after[key].module)
        tables = [torch.nn.Embedding.from_pretrained(e.weight, False) for e in net.embeddings]
        parents = leaf.dependence.after
        leaves.append(After(key, parents, AfterNet(tables, net.hidden, net.out)))
    return leaves


def chain() -> Space:
    """Return three masked choices, each after all before it."""
    sizes = {"first": 8, "second": 16, "third": 32}
    after = {"first": (), "second": ("first",), "third": ("first", "second")}
    return Space(
        head=lambda: CompositeHead(
            *(
                CategoricalHead(key, n, mask=True, after=after[key], validate=False)
                for key, n in sizes.items()
            )
        ),
        leaves=plain_chain,
        masks=lambda batch: {f"{key}_mask": legal(batch, n) for key, n in sizes.items()},
    )


SPACES = {
    "hybrid": mixed(3),
    "multi8": dimensions(NVEC),
    "agents5": one_choice(16, (AGENTS,)),
    "chain3": chain(),
    # 4096 rows of 29,275 numbers are half a GB, of which a backward pass keeps several
    "wide29275": one_choice(MOVES, batches=(1, 64, 256), nvec=(MOVES,)),
    "list29275": Space(
        head=lambda: SparseCategoricalHead("action", MOVES, LEGAL, validate=False),
        leaves=lambda _: [Listed("action")],
        masks=listed_moves,
        batches=(1, 64, 256),
    ),
}
