"""The same policies in other libraries: TorchRL's distributions, SB3-contrib's maskable ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    set_composite_lp_aggregate,
)
from torch import Tensor, nn
from torch.distributions import Distribution


@dataclass(frozen=True)
class TorchRL:
    """TorchRL's distributions of the leaves of a space.

    Args:
        kinds: leaf -> distribution class.
        in_keys: parameters and masks that tdheads' head reads.
        names: (leaf, argument) of every tensor that `prepare` returns.
        prepare: from the tensors at `in_keys` to the arguments of the distributions.
    """

    kinds: Mapping[str, type[Distribution]]
    in_keys: Sequence[str]
    names: Sequence[tuple[str, str]]
    prepare: Callable[..., tuple[Tensor, ...]] = lambda *tensors: tensors

    def dist(self, td: Mapping[str, Tensor]) -> Any:
        """Build the distribution of a batch."""
        args: dict[str, dict[str, Tensor]] = {leaf: {} for leaf in self.kinds}
        tensors = self.prepare(*(td[key] for key in self.in_keys))
        for (leaf, name), tensor in zip(self.names, tensors, strict=True):
            args[leaf][name] = tensor
        if len(self.kinds) == 1:
            ((leaf, kind),) = self.kinds.items()
            return kind(**args[leaf])
        params = TensorDict(args, tensors[0].shape[:-1])
        return CompositeDistribution(params, distribution_map=dict(self.kinds))

    def actor(self, *networks: nn.Module) -> ProbabilisticTensorDictSequential:
        """Return the networks, which write `in_keys`, and the distributions as one actor."""
        keys: list[Any] = [("params", *name) for name in self.names]
        prepare = TensorDictModule(self.prepare, list(self.in_keys), keys)
        with set_composite_lp_aggregate(False):
            return ProbabilisticTensorDictSequential(*networks, prepare, self._drawing())

    def _drawing(self) -> ProbabilisticTensorDictModule:
        leaves = list(self.kinds)
        if len(leaves) > 1:
            return ProbabilisticTensorDictModule(
                ["params"],
                leaves,
                distribution_class=CompositeDistribution,
                distribution_kwargs={"distribution_map": dict(self.kinds)},
                return_log_prob=True,
            )
        in_keys: Any = {name: ("params", leaf, name) for leaf, name in self.names}
        return ProbabilisticTensorDictModule(
            in_keys, leaves, distribution_class=self.kinds[leaves[0]], return_log_prob=True
        )


class SB3:
    """SB3-contrib's maskable distribution of one choice or of several."""

    def __init__(self, nvec: Sequence[int]) -> None:
        from sb3_contrib.common.maskable import distributions

        if len(nvec) == 1:
            self.dist = distributions.MaskableCategoricalDistribution(nvec[0])
        else:
            self.dist = distributions.MaskableMultiCategoricalDistribution(list(nvec))

    def __call__(self, td: Mapping[str, Tensor]) -> Any:
        """Give the parameters and the mask of a batch to the distribution."""
        dist = self.dist.proba_distribution(td["action_logits"])
        dist.apply_masking(td["action_mask"])
        return dist
