"""What the benchmarks compare does the same work: equal values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.densities import OPERATIONS, density_runs
from benchmarks.policies import LOSSES, Policies
from benchmarks.spaces import SPACES, mixed

TERMS = ("loss_objective", "loss_entropy", "loss_critic", "kl_approx", "ESS", "max_ratio")
CASES = [*SPACES.items(), ("one-leaf", mixed(1)), ("seven-leaves", mixed(7))]
ALL = pytest.mark.parametrize("space", [pytest.param(s, id=name) for name, s in CASES])


def gradient(out: Any, params: list[Tensor]) -> list[Tensor]:
    return torch.autograd.grad(sum(out[term] for term in TERMS[:3]), params)


@ALL
@pytest.mark.parametrize("loss", LOSSES)
def test_plain_loss_is_ours(space: Any, loss: str) -> None:
    policies = Policies(space, 5)
    outs = {impl: run() for impl, run in policies.losses(loss, backward=False).items()}
    ours, plain = outs["tdheads"], outs["plain"]
    torch.testing.assert_close([ours[t] for t in TERMS], [plain[t] for t in TERMS])
    assert ours["kl_approx"] != 0  # the weights moved after collection
    # body, projection, critic: networks of dependent leaves are listed in another order
    mine = [*policies.actor[0].parameters(), *policies.actor[1].parameters()]
    theirs = [*policies.plain.body.parameters(), *policies.plain.layer.parameters()]
    mine += policies.critic.parameters()
    theirs += policies.plain_critic.parameters()
    torch.testing.assert_close(gradient(ours, mine), gradient(plain, theirs))
    if "torchrl" in outs:  # it drew actions of its own: what does not depend on them
        for term in ("loss_entropy", "loss_critic"):
            torch.testing.assert_close(outs["torchrl"][term], ours[term])


@ALL
@pytest.mark.parametrize("operation", OPERATIONS[:3])
def test_densities_are_equal(space: Any, operation: str) -> None:
    found = {impl: run() for impl, run in density_runs(Policies(space, 5), operation).items()}
    assert found["tdheads"].shape == (5, *space.agents)
    for impl, value in found.items():
        if (impl, operation) != ("torchrl", "log_prob"):
            torch.testing.assert_close(value, found["tdheads"])


@ALL
def test_what_is_timed_leaves_a_gradient(space: Any) -> None:
    policies = Policies(space, 5)
    for run in policies.losses("clip").values():
        run()
    for module in (policies.actor, policies.critic, policies.plain, policies.plain_critic):
        assert all(param.grad is not None for param in module.parameters())


@ALL
def test_every_actor_draws_legal_actions(space: Any) -> None:
    torch.manual_seed(0)
    policies = Policies(space, 64)
    drawn = {impl: run() for impl, run in policies.acting().items()}
    for leaf in policies.plain.leaves:
        ours, plain = drawn["tdheads"], drawn["plain"]
        assert plain[leaf.key].dtype == ours[leaf.key].dtype
        assert plain[leaf.key].shape == ours[leaf.key].shape
        log_prob = plain[leaf.key + "_log_prob"]
        assert log_prob.shape == (64, *space.agents)
        assert log_prob.isfinite().all()
