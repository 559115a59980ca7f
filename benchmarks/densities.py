"""Log-prob, entropy and KL from parameters, without networks; building the distribution counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from tensordict.nn import set_composite_lp_aggregate
from torch import Tensor
from torch.distributions import kl_divergence

from benchmarks.leaves import sum_of
from benchmarks.peers import SB3
from benchmarks.policies import Policies, Run, Runs
from benchmarks.spaces import Space
from tdheads import CompositeHead

OPERATIONS = ("log_prob", "entropy", "kl", "log_prob+entropy-backward")


class Density(ABC):
    """One implementation; leaves are summed, `[*B]`."""

    def __init__(self, policies: Policies) -> None:
        self.policies = policies

    @abstractmethod
    def dist(self, td: TensorDict) -> Any:
        """Build the distribution from the parameters and masks in the batch."""

    def log_prob(self, dist: Any, td: TensorDict) -> Tensor:
        """Score the stored actions."""
        return dist.log_prob(td["action"])

    def entropy(self, dist: Any) -> Tensor:
        """Return the entropy."""
        return dist.entropy()

    def kl(self, old: Any, new: Any) -> Tensor:
        """Return the KL."""
        return kl_divergence(old, new)


class Ours(Density):
    """The distribution of a head."""

    def dist(self, td: TensorDict) -> Any:
        return self.policies.head.get_dist(td)

    def log_prob(self, dist: Any, td: TensorDict) -> Tensor:
        several = isinstance(self.policies.head, CompositeHead)
        return _summed(dist.log_prob(td if several else td["action"]))

    def entropy(self, dist: Any) -> Tensor:
        return _summed(dist.entropy())


class Plain(Density):
    """Leaves in plain PyTorch."""

    def dist(self, td: TensorDict) -> Any:
        batch = dict(td.items())
        return [leaf.scores(batch) for leaf in self.policies.plain.leaves]

    def log_prob(self, dist: Any, td: TensorDict) -> Tensor:
        scored = zip(self.policies.plain.leaves, dist, strict=True)
        return sum_of(leaf.log_prob(scores, td[leaf.key]) for leaf, scores in scored)

    def entropy(self, dist: Any) -> Tensor:
        scored = zip(self.policies.plain.leaves, dist, strict=True)
        return sum_of(leaf.entropy(scores) for leaf, scores in scored)

    def kl(self, old: Any, new: Any) -> Tensor:
        pairs = zip(self.policies.plain.leaves, old, new, strict=True)
        return sum_of(leaf.kl(p, q) for leaf, p, q in pairs)


class TorchRLs(Density):
    """TorchRL's distribution, of several leaves or of one."""

    def __init__(self, policies: Policies) -> None:
        super().__init__(policies)
        self.peer = policies.space.torchrl
        self.actions = policies.torchrl_td.select(*self.peer.kinds)

    def dist(self, td: TensorDict) -> Any:
        return self.peer.dist(td)

    def log_prob(self, dist: Any, td: TensorDict) -> Tensor:
        several = len(self.peer.kinds) > 1
        return dist.log_prob(self.actions if several else self.actions[next(iter(self.peer.kinds))])


class SB3s(Density):
    """SB3-contrib's maskable distribution."""

    def __init__(self, policies: Policies) -> None:
        super().__init__(policies)
        self.peer = SB3(policies.space.nvec)

    def dist(self, td: TensorDict) -> Any:
        return self.peer(td)


DENSITIES = {"tdheads": Ours, "plain": Plain, "torchrl": TorchRLs, "sb3": SB3s}


def density_impls(space: Space, operation: str) -> list[str]:
    """Return the implementations that have it: SB3 and TorchRL's composites have no KL."""
    found = space.impls(sb3=operation != "kl")
    if operation == "kl" and space.torchrl and len(space.torchrl.kinds) > 1:
        found.remove("torchrl")
    return found


def density_runs(policies: Policies, operation: str) -> Runs:
    """Return the operation on the batch for each implementation."""
    impls = density_impls(policies.space, operation)
    return {impl: _run(DENSITIES[impl](policies), policies, operation) for impl in impls}


def _run(density: Density, policies: Policies, operation: str) -> Run:
    old = policies.td
    with torch.no_grad():
        new = policies.actor[:2](old.copy())
    names = policies.actor[1].out_keys
    if operation.endswith("backward"):
        new.update({key: new[key].detach().requires_grad_() for key in names})

    def run() -> Tensor:
        dist = density.dist(new)
        if operation == "log_prob":
            return density.log_prob(dist, new)
        if operation == "entropy":
            return density.entropy(dist)
        if operation == "kl":
            return density.kl(density.dist(old), dist)
        both = density.log_prob(dist, new) + density.entropy(dist)
        return both.sum().backward()

    grad = torch.enable_grad() if operation.endswith("backward") else torch.no_grad()
    return set_composite_lp_aggregate(True)(grad(run))


def _summed(values: Any) -> Tensor:
    return sum_of(values.values()) if is_tensor_collection(values) else values
