"""Losses and heads under torch.func: stacked parameters, gradients, draws inside vmap."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import CompositeDistribution
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import KLPENPPOLoss
from tests.batches import TERMS, collect, gradients, move
from tests.cases import HEADS, LOSSES, HeadCase, LossCase, case_ids, critic

all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
all_losses = pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))


class Total(nn.Module):
    """The sum of the terms of a loss, which is what is differentiated."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, td: TensorDict) -> Tensor:
        out = self.loss(td)
        return sum(out[term] for term in TERMS)


@all_losses
@all_heads
def test_vmap_over_stacked_parameters_equals_a_loop(case: HeadCase, kind: LossCase) -> None:
    actor, value = case.actor(validate=False), critic()
    td = collect(case, actor, [5])
    move(actor)
    loss = kind.build(actor, value)
    params = TensorDict.from_module(loss).data

    def scaled(size: float) -> TensorDict:
        return params.apply(lambda x: x * size if x.is_floating_point() else x.clone())

    stacked = torch.stack([scaled(1 + 0.1 * i) for i in range(3)])

    def run(p: TensorDict) -> TensorDict:
        with p.to_module(loss):
            return loss(td)

    found = torch.vmap(run)(stacked)
    expected = torch.stack([run(p) for p in stacked.unbind(0)])
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, figure in expected.items(True, True):
        torch.testing.assert_close(found[key], figure, rtol=1e-5, atol=1e-6)


@all_losses
@all_heads
def test_the_gradient_of_every_stacked_parameter_equals_backward(
    case: HeadCase, kind: LossCase
) -> None:
    actor, value = case.actor(validate=False), critic()
    td = collect(case, actor, [5])
    losses = []
    for seed in range(3):
        losses.append(kind.build(copy.deepcopy(actor), copy.deepcopy(value), functional=False))
        move(losses[-1], seed=seed)
    model = Total(copy.deepcopy(losses[0]))
    stacked = {
        f"loss.{name}": torch.stack([dict(one.named_parameters())[name].detach() for one in losses])
        for name, _ in losses[0].named_parameters()
    }

    def run(params: dict[str, Tensor]) -> Tensor:
        return functional_call(model, params, (td,))

    found = vmap(grad(run))(stacked)
    for i, one in enumerate(losses):
        _, expected = gradients(one, td)
        assert {f"loss.{name}" for name in expected} == set(found)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[f"loss.{name}"][i], gradient, rtol=1e-4, atol=1e-6)


def test_a_beta_that_would_move_stays_under_transforms() -> None:
    """There are several KLs and one beta; the caller moves it with ``update_beta``."""
    case = HEADS[-1]
    td = collect(case, actor := case.actor(validate=False), [5])
    move(actor, 1.0)
    loss = KLPENPPOLoss(actor, critic(), functional=False)
    params = {f"loss.{name}": param.detach() for name, param in loss.named_parameters()}
    call = partial(functional_call, Total(loss))
    gradient = grad(lambda p: call(p, (td,)))(params)
    assert loss.beta == 1
    _, expected = gradients(loss, td)
    assert loss.beta == 2
    for name, value in expected.items():
        torch.testing.assert_close(gradient[f"loss.{name}"], value, rtol=1e-5, atol=1e-6)


# torch has no batching rule for gamma draws, falls back to a loop and says so
@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet")
@all_heads
def test_drawing_inside_vmap(case: HeadCase) -> None:
    actor, td = case.actor(), case.inputs([50])
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        found = torch.vmap(actor, randomness="different")(td.clone())
    dist = actor.get_dist(found)
    for action, key in zip(actor.dist_sample_keys, actor.log_prob_keys, strict=True):
        leaf = dist[action] if isinstance(dist, CompositeDistribution) else dist
        assert found[key].isfinite().all()
        torch.testing.assert_close(leaf.log_prob(found[action]), found[key], rtol=1e-4, atol=1e-4)
