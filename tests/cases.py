"""The table of cases: every distribution and every head once. Laws live in the test files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads import (
    BernoulliHead,
    BetaHead,
    BoxNormalHead,
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    Head,
    KLPENPPOLoss,
    MaskedBernoulli,
    MaskedCategorical,
    MaskedJointCategorical,
    MaskedMultiCategorical,
    MaskedMultiOneHot,
    MaskedOneHotCategorical,
    MultiCategoricalHead,
    MultiOneHotHead,
    NormalHead,
    OneHotCategoricalHead,
    PolicyLoss,
    PPOLoss,
    SequenceHead,
    SparseCategorical,
    SparseCategoricalHead,
    SPOLoss,
    TanhNormalHead,
    make_actor,
)
from tests import oracle

# Sizes are different primes, so that a wrong broadcast shows.
N, NVEC, FEATURES = 7, [3, 2, 5], 11
# A list of at most LISTED legal choices out of MANY.
LISTED, MANY = 5, 19


def legal_lists(batch: Sequence[int], width: int, n: int, gen: torch.Generator) -> Tensor:
    """Random lists of legal choices out of n, each once, with -1 in some places but not all."""
    chosen = torch.rand(*batch, n, generator=gen).argsort(-1)[..., :width]
    padded = torch.rand(*batch, width, generator=gen) < 0.4
    padded[..., 1] = False
    return chosen.masked_fill(padded, -1)


@dataclass(frozen=True)
class Discrete:
    """A finite distribution: how to build it, and the rows of the oracle that describe it."""

    name: str
    width: int
    #: shape of a mask without batch dims
    mask_shape: tuple[int, ...]
    build: Callable[..., Distribution]
    #: (logits [width], mask) -> {value: probability}
    probs: Callable[[np.ndarray, np.ndarray], dict[Any, float]]

    def masks(self, batch: Sequence[int], seed: int = 0) -> Tensor:
        """Random masks with a legal choice wherever one is needed."""
        gen = torch.Generator().manual_seed(seed)
        mask = torch.rand(*batch, *self.mask_shape, generator=gen) < 0.6
        mask.view(*batch, int(np.prod(self.mask_shape)))[..., self.first_of_each()] = True
        return mask

    def everything(self, batch: Sequence[int]) -> Tensor:
        """A mask that allows all."""
        return torch.ones(*batch, *self.mask_shape, dtype=torch.bool)

    def only_first(self, batch: Sequence[int]) -> Tensor:
        """A mask that allows one choice, or one of each dimension."""
        mask = torch.zeros(*batch, *self.mask_shape, dtype=torch.bool)
        mask.view(*batch, -1)[..., self.first_of_each()] = True
        return mask

    def nothing(self, mask: Tensor, row: int) -> Tensor:
        """The mask with nothing to choose in one row."""
        mask = mask.clone()
        mask[row] = False
        return mask

    def legal(self, mask: Tensor) -> Tensor:
        """Which logits are those of legal choices, ``[*B, width]``."""
        if self.name.endswith("-padded"):
            return torch.cat([mask[..., d, :n] for d, n in enumerate(NVEC)], -1)
        return mask.flatten(mask.ndim - len(self.mask_shape))

    def first_of_each(self) -> list[int]:
        """Positions whose legality makes every dimension non-empty."""
        if self.name.endswith("-padded"):
            return [d * max(NVEC) for d in range(len(NVEC))]
        if self.name.endswith("-flat"):
            return [0, *np.cumsum(NVEC)[:-1].tolist()]
        return [0]

    def logits(self, batch: Sequence[int], seed: int = 1, **kwargs: Any) -> Tensor:
        """Random logits."""
        gen = torch.Generator().manual_seed(seed)
        return torch.randn(*batch, self.width, generator=gen, **kwargs) * 2


@dataclass(frozen=True)
class Listed(Discrete):
    """A finite distribution whose legal choices are listed instead of masked."""

    def masks(self, batch: Sequence[int], seed: int = 0) -> Tensor:
        """Random lists."""
        gen = torch.Generator().manual_seed(seed)
        return legal_lists(batch, self.width, MANY, gen)

    def everything(self, batch: Sequence[int]) -> Tensor:
        """As many choices as a list can hold, in no order."""
        return torch.tensor([11, 2, 17, 3, 5]).expand(*batch, -1).clone()

    def only_first(self, batch: Sequence[int]) -> Tensor:
        """One choice, of those of ``everything``, in another place."""
        return torch.tensor([-1, -1, 11, -1, -1]).expand(*batch, -1).clone()

    def nothing(self, mask: Tensor, row: int) -> Tensor:
        """The list with nothing to choose in one row."""
        mask = mask.clone()
        mask[row] = -1
        return mask

    def legal(self, mask: Tensor) -> Tensor:
        """Where the list is not padded."""
        return mask >= 0


def listed_probs(logits: np.ndarray, index: np.ndarray) -> dict[Any, float]:
    probs = oracle.masked_probs(logits, index >= 0)
    values = dict.fromkeys(range(MANY), 0.0)
    return values | {int(i): float(p) for i, p in zip(index, probs, strict=True) if i >= 0}


def _sparse(logits: Tensor, index: Tensor, **kwargs: Any) -> Distribution:
    return SparseCategorical(logits, index, MANY, **kwargs)


def _sparse_copied(logits: Tensor, index: Tensor, **kwargs: Any) -> Distribution:
    return SparseCategorical(logits, index.clone(), MANY, **kwargs)


def _single(logits: np.ndarray, mask: np.ndarray) -> dict[Any, float]:
    return dict(enumerate(oracle.masked_probs(logits, mask).tolist()))


def factored_probs(logits: np.ndarray, mask: np.ndarray) -> dict[Any, float]:
    rows = np.split(logits, np.cumsum(NVEC)[:-1])
    if mask.ndim == 2:
        masks = [m[:n] for m, n in zip(mask, NVEC, strict=True)]
    else:
        masks = np.split(mask, np.cumsum(NVEC)[:-1])
    return dict(
        oracle.joint_probs([oracle.masked_probs(*row) for row in zip(rows, masks, strict=False)])
    )


def _joint(logits: np.ndarray, mask: np.ndarray) -> dict[Any, float]:
    probs = oracle.masked_probs(logits, mask.reshape(-1)).reshape(mask.shape)
    return {index: float(probs[index]) for index in np.ndindex(*mask.shape)}


def _multi(logits: Tensor, mask: Tensor | None = None, **kwargs: Any) -> Distribution:
    return MaskedMultiCategorical(logits, NVEC, mask, **kwargs)


def _product(logits: Tensor, mask: Tensor | None = None, **kwargs: Any) -> Distribution:
    return MaskedJointCategorical(logits, NVEC, mask, **kwargs)


def _one_hot(index: int, size: int) -> tuple[int, ...]:
    return tuple(int(i == index) for i in range(size))


def _as_one_hot(logits: np.ndarray, mask: np.ndarray) -> dict[Any, float]:
    return {_one_hot(i, N): p for i, p in _single(logits, mask).items()}


def _as_multi_one_hot(logits: np.ndarray, mask: np.ndarray) -> dict[Any, float]:
    factored = factored_probs(logits, mask)
    return {
        sum((_one_hot(i, n) for i, n in zip(choice, NVEC, strict=True)), ()): p
        for choice, p in factored.items()
    }


def bit_probs(logits: np.ndarray, mask: np.ndarray) -> dict[Any, float]:
    one = np.where(mask, 1 / (1 + np.exp(-logits.astype(np.float64))), 0.0)
    return dict(oracle.joint_probs([np.array([1 - p, p]) for p in one]))


def _multi_hot(logits: Tensor, mask: Tensor | None = None, **kwargs: Any) -> Distribution:
    return MaskedMultiOneHot(logits, NVEC, mask, **kwargs)


DISCRETE = [
    Discrete("categorical", N, (N,), MaskedCategorical, _single),
    Discrete("multi-flat", sum(NVEC), (sum(NVEC),), _multi, factored_probs),
    Discrete("multi-padded", sum(NVEC), (len(NVEC), max(NVEC)), _multi, factored_probs),
    Discrete("joint", int(np.prod(NVEC)), tuple(NVEC), _product, _joint),
    Discrete("one-hot", N, (N,), MaskedOneHotCategorical, _as_one_hot),
    Discrete("multi-one-hot-flat", sum(NVEC), (sum(NVEC),), _multi_hot, _as_multi_one_hot),
    Discrete(
        "multi-one-hot-padded", sum(NVEC), (len(NVEC), max(NVEC)), _multi_hot, _as_multi_one_hot
    ),
    Discrete("bits", N, (N,), MaskedBernoulli, bit_probs),
    Listed("sparse", LISTED, (LISTED,), _sparse, listed_probs),
    # KL cannot see that two lists are one
    Listed("sparse-copied", LISTED, (LISTED,), _sparse_copied, listed_probs),
]


@dataclass(frozen=True)
class HeadCase:
    """A head, and what it reads besides its parameters."""

    name: str
    build: Callable[..., Head]
    #: key -> shape of each mask without batch dims
    masks: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    #: key -> (length, number of choices) of each list of legal choices
    lists: dict[Any, tuple[int, int]] = field(default_factory=dict)

    @property
    def constraints(self) -> set[Any]:
        """Keys of all masks and lists."""
        return {*self.masks, *self.lists}

    def inputs(self, batch: Sequence[int], seed: int = 0, **kwargs: Any) -> TensorDict:
        """Observations, masks and lists."""
        gen = torch.Generator().manual_seed(seed)
        obs = torch.randn(*batch, FEATURES, generator=gen, **kwargs)
        td = TensorDict({"observation": obs}, list(batch))
        for key, shape in self.masks.items():
            mask = torch.rand(*batch, *shape, generator=gen) < 0.5
            # the first option of every dimension, flat or padded, stays legal
            if shape == (sum(NVEC),):
                mask[..., [0, *np.cumsum(NVEC)[:-1].tolist()]] = True
            else:
                mask[..., 0] = True
            td[key] = mask
        for key, (width, n) in self.lists.items():
            td[key] = legal_lists(batch, width, n, gen)
        return td

    def actor(self, dtype: torch.dtype = torch.float32, **kwargs: Any) -> nn.Module:
        """A small actor around the head."""
        body = nn.Sequential(nn.Linear(FEATURES, 13), nn.Tanh())
        backbone = TensorDictModule(body, ["observation"], ["hidden"])
        return make_actor(backbone, self.build(**kwargs), num_features=13, gain=1.0).to(dtype)


def _hybrid(**kwargs: Any) -> Head:
    return CompositeHead(
        CategoricalHead("kind", N, mask=True, **kwargs),
        NormalHead(("arm", "force"), (2,), **kwargs),
        TanhNormalHead("where", -1.0, 3.0, (3,), **kwargs),
        MultiCategoricalHead("items", NVEC, mask=True, **kwargs),
    )


def _conditional(**kwargs: Any) -> Head:
    return CompositeHead(
        CategoricalHead("kind", N, mask=True, **kwargs),
        TanhNormalHead("force", 1.0, 3.0, (3,), when={"kind": [0, 1, 2]}, **kwargs),
        MultiCategoricalHead("items", NVEC, when={"kind": [2, 3, 4]}, **kwargs),
    )


def _mask_given(**kwargs: Any) -> Head:
    return CompositeHead(
        CategoricalHead("kind", 2, **kwargs),
        CategoricalHead("target", N, mask=True, mask_given="kind", **kwargs),
    )


def _autoregressive(enumerate_parents: bool = False, **kwargs: Any) -> Head:
    after: dict[str, Any] = {**kwargs, "enumerate_parents": enumerate_parents}
    return CompositeHead(
        CategoricalHead("kind", N, mask=True, **kwargs),
        CategoricalHead("target", 5, after=("kind",), **after),
        NormalHead("force", (2,), after=("kind", "target"), **after),
        num_features=13,
    )


def _gated_list(**kwargs: Any) -> Head:
    return CompositeHead(
        CategoricalHead("kind", 3, mask=True, **kwargs),
        SparseCategoricalHead("move", MANY, LISTED, when={"kind": [0, 2]}, **kwargs),
        BernoulliHead("bits", 2, when={"move": range(0, MANY, 2)}, **kwargs),
    )


def _tree(**kwargs: Any) -> Head:
    return CompositeHead(
        CategoricalHead("kind", 2, **kwargs),
        CategoricalHead(
            "target",
            N,
            mask=True,
            mask_given="kind",
            when={"kind": 1},
            after=("kind",),
            enumerate_parents=True,
            **kwargs,
        ),
        BernoulliHead("bits", 3, when={"target": [0, 1, 2]}, **kwargs),
        num_features=13,
    )


HEADS = [
    HeadCase("flat", lambda **kw: CategoricalHead("action", N, **kw)),
    HeadCase(
        "masked",
        lambda **kw: CategoricalHead("action", N, mask=True, **kw),
        {"action_mask": (N,)},
    ),
    HeadCase(
        "named mask",
        lambda **kw: CategoricalHead(("agents", "action"), N, mask=("info", "legal"), **kw),
        {("info", "legal"): (N,)},
    ),
    HeadCase(
        "multi",
        lambda **kw: MultiCategoricalHead("action", NVEC, mask=True, **kw),
        {"action_mask": (sum(NVEC),)},
    ),
    HeadCase(
        "multi padded",
        lambda **kw: MultiCategoricalHead("action", NVEC, mask=True, **kw),
        {"action_mask": (len(NVEC), max(NVEC))},
    ),
    HeadCase(
        "joint",
        lambda **kw: MultiCategoricalHead("action", NVEC, joint=True, mask=True, **kw),
        {"action_mask": tuple(NVEC)},
    ),
    HeadCase(
        "one-hot",
        lambda **kw: OneHotCategoricalHead("action", N, mask=True, **kw),
        {"action_mask": (N,)},
    ),
    HeadCase(
        "one-hot relaxed",
        lambda **kw: OneHotCategoricalHead(
            "action", N, grad_method="relaxed", temperature=0.7, mask=True, **kw
        ),
        {"action_mask": (N,)},
    ),
    HeadCase(
        "multi-one-hot",
        lambda **kw: MultiOneHotHead("action", NVEC, mask=True, **kw),
        {"action_mask": (len(NVEC), max(NVEC))},
    ),
    HeadCase(
        "bits",
        lambda **kw: BernoulliHead("action", N, mask=True, **kw),
        {"action_mask": (N,)},
    ),
    HeadCase(
        "sparse",
        lambda **kw: SparseCategoricalHead("action", MANY, LISTED, **kw),
        lists={"action_legal": (LISTED, MANY)},
    ),
    HeadCase("beta", lambda **kw: BetaHead("action", -1.0, 3.0, (3,), **kw)),
    HeadCase(
        "box",
        lambda **kw: BoxNormalHead(
            "action",
            torch.tensor([0.0, -torch.inf, -torch.inf, -1.0]),
            torch.tensor([torch.inf, 5.0, torch.inf, 3.0]),
            (4,),
            **kw,
        ),
    ),
    HeadCase("normal", lambda **kw: NormalHead("action", (3,), **kw)),
    HeadCase("normal free", lambda **kw: NormalHead("action", (2, 3), free_scale=True, **kw)),
    HeadCase("tanh", lambda **kw: TanhNormalHead("action", 0.0, 10.0, (3,), **kw)),
    HeadCase(
        "one leaf",
        lambda **kw: CompositeHead(CategoricalHead("kind", N, mask=True, **kw)),
        {"kind_mask": (N,)},
    ),
    HeadCase("conditional", _conditional, {"kind_mask": (N,)}),
    HeadCase("mask given", _mask_given, {"target_mask": (2, N)}),
    HeadCase("autoregressive", _autoregressive, {"kind_mask": (N,)}),
    HeadCase("tree", _tree, {"target_mask": (2, N)}),
    HeadCase("gated list", _gated_list, {"kind_mask": (3,)}, lists={"move_legal": (LISTED, MANY)}),
    HeadCase(
        "sequence",
        lambda **kw: SequenceHead("items", 4, 3, repeat=False, mask=True, num_features=13, **kw),
        {"items_mask": (5,)},
    ),
    HeadCase("hybrid", _hybrid, {"kind_mask": (N,), "items_mask": (sum(NVEC),)}),
]


@dataclass(frozen=True)
class LossCase:
    """A loss, with keywords that leave nothing to chance or to the batch before."""

    name: str
    build: Callable[..., PolicyLoss]


LOSSES = [
    LossCase("ppo", PPOLoss),
    LossCase("clip", ClipPPOLoss),
    LossCase("kl-penalty", partial(KLPENPPOLoss, adapt_beta=False, beta=0.7)),
    LossCase("spo", SPOLoss),
]


def case_ids(cases: Sequence[Any]) -> list[str]:
    """Names for pytest's ids."""
    return [case.name for case in cases]


def critic(dtype: torch.dtype = torch.float32) -> TensorDictModule:
    """A small critic."""
    body = nn.Sequential(nn.Linear(FEATURES, 13), nn.Tanh(), nn.Linear(13, 1))
    return TensorDictModule(body, ["observation"], ["state_value"]).to(dtype)
