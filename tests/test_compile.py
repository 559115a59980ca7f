"""Under torch.compile(fullgraph=True) every head and loss equals eager, and compiles once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import ClipPPOLoss
from tests.batches import TERMS, collect, gradients, move
from tests.cases import HEADS, HeadCase, case_ids, critic

all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@all_heads
def test_the_compiled_loss_equals_eager_in_value_and_gradient(case: HeadCase) -> None:
    actor, value = case.actor(), critic()
    td = collect(case, actor, [11])
    move(actor)
    loss = ClipPPOLoss(actor, value, normalize_advantage=True)
    expected, expected_grad = gradients(loss, td)
    compiled = torch.compile(loss, fullgraph=True)
    loss.zero_grad()
    found = compiled(td)
    sum(found[term] for term in TERMS).backward()
    for key, figure in expected.items(True, True):
        torch.testing.assert_close(found[key], figure, rtol=1e-5, atol=1e-5)
    for name, param in loss.named_parameters():
        torch.testing.assert_close(param.grad, expected_grad[name], rtol=1e-5, atol=1e-6)


@all_heads
def test_the_loss_compiles_once_for_batches_of_one_shape(case: HeadCase) -> None:
    actor, value = case.actor(), critic()
    loss = ClipPPOLoss(actor, value)
    loss(collect(case, actor, [11]))  # fills tensordict's memo of types, which dynamo guards
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(loss, backend=counter, fullgraph=True)
    for seed in range(5):
        td = collect(case, actor, [11], seed=seed)
        torch.testing.assert_close(compiled(td)["loss_objective"], loss(td)["loss_objective"])
    assert counter.frame_count == 1
    assert not counters["graph_break"]


@all_heads
@pytest.mark.parametrize("mode", ["DETERMINISTIC", "RANDOM"])
def test_acting_compiles_without_a_graph_break(case: HeadCase, mode: str) -> None:
    actor, td = case.actor(), case.inputs([11])
    compiled = torch.compile(actor, backend="aot_eager", fullgraph=True)
    with set_exploration_type(ExplorationType[mode]), torch.no_grad():
        found, expected = compiled(td.clone()), actor(td.clone())
    for key in actor.log_prob_keys:
        assert found[key].isfinite().all()
    if mode == "DETERMINISTIC":
        for key in actor.out_keys:
            torch.testing.assert_close(found[key], expected[key])


def test_padding_compiles_too() -> None:
    case = HEADS[-1]
    actor, value = case.actor(), critic()
    td = collect(case, actor, [11])
    td["collector", "mask"] = torch.rand(11, 1) < 0.7
    loss = ClipPPOLoss(actor, value, normalize_advantage=True)
    expected = loss(td)
    found = torch.compile(loss, backend="aot_eager", fullgraph=True)(td)
    for key, figure in expected.items(True, True):
        torch.testing.assert_close(found[key], figure, rtol=1e-5, atol=1e-5)
