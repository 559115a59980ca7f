"""Under torch.compile(fullgraph=True) every head and loss equals eager, and compiles once.

Clip is compiled by inductor around every head, the others around the hybrid one. The rest of the
table: the KL penalty by "aot_eager", which traces forward and backward alike but generates no code,
and the losses that differ from Clip in one line by "eager", which captures the graph.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import SoftUpdate

from tdheads import ClipPPOLoss, KLPENPPOLoss, PPOLoss, SPOLoss
from tests.batches import TERMS, collect, gradients, move
from tests.cases import HEADS, HeadCase, LossCase, case_ids, critic
from tests.versions import needs_value_norm

# every loss as in LOSSES, but with a beta that moves
LOSSES = [
    LossCase("ppo", PPOLoss),
    LossCase("clip", ClipPPOLoss),
    LossCase("kl-penalty", KLPENPPOLoss),
    LossCase("spo", SPOLoss),
]
HYBRID = HEADS[-1]
AUTOREGRESSIVE = next(case for case in HEADS if case.name == "autoregressive")
all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
all_losses = pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def check(loss: nn.Module, batches: list[TensorDict], backend: str) -> None:
    """The compiled loss equals a copy run eagerly, on every batch, and is compiled once."""
    eager = copy.deepcopy(loss)
    loss(batches[0])  # fills tensordict's memo of types, which dynamo guards
    loss.load_state_dict(eager.state_dict())
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(loss, backend=counter, fullgraph=True)
    for td in batches:
        expected, grads = gradients(eager, td)
        loss.zero_grad()
        found = compiled(td)
        sum(found[term] for term in TERMS).backward()
        assert set(found.keys(True, True)) == set(expected.keys(True, True))
        for key, figure in expected.items(True, True):
            torch.testing.assert_close(found[key], figure, rtol=1e-5, atol=1e-5)
        assert {name for name, p in loss.named_parameters() if p.grad is not None} == set(grads)
        for name, param in loss.named_parameters():
            torch.testing.assert_close(param.grad, grads.get(name), rtol=1e-5, atol=1e-6)
        for name, buffer in eager.named_buffers():  # beta among them
            torch.testing.assert_close(dict(loss.named_buffers())[name], buffer)
    assert counter.frame_count == 1
    assert not counters["graph_break"]


def batches_of(case: HeadCase, actor: nn.Module, *, padded: bool = False) -> list[TensorDict]:
    batches = [collect(case, actor, [11], seed=seed) for seed in range(5)]
    for shift, td in enumerate(batches if padded else []):
        td["collector", "mask"] = (torch.arange(11) + shift).unsqueeze(-1) % 3 != 0
    return batches


BACKENDS = {"clip": "inductor", "kl-penalty": "aot_eager"}
CROSS = [
    (case, kind, "inductor" if case is HYBRID else BACKENDS.get(kind.name, "eager"))
    for kind in LOSSES
    for case in HEADS
]


@pytest.mark.parametrize(
    ("case", "kind", "backend"), CROSS, ids=[f"{k.name}-{c.name}-{b}" for c, k, b in CROSS]
)
def test_the_compiled_loss_equals_eager_and_compiles_once(
    case: HeadCase, kind: LossCase, backend: str
) -> None:
    actor = case.actor()
    batches = batches_of(case, actor)
    move(actor)
    loss = kind.build(actor, critic(), normalize_advantage=True)
    check(loss, batches, backend)
    if isinstance(loss, KLPENPPOLoss):
        assert loss.beta != 1  # it moved, without another compilation


@all_losses
def test_padding_and_one_ratio_per_leaf_compile_too(kind: LossCase) -> None:
    actor = HYBRID.actor()
    batches = batches_of(HYBRID, actor, padded=True)
    move(actor)
    loss = kind.build(actor, critic(), normalize_advantage=True, aggregate="none")
    check(loss, batches, "aot_eager")


@needs_value_norm
@all_losses
def test_target_networks_and_running_statistics_compile_too(kind: LossCase) -> None:
    from torchrl.modules import PopArtValueNorm

    actor, norm = AUTOREGRESSIVE.actor(), PopArtValueNorm()
    batches = batches_of(AUTOREGRESSIVE, actor, padded=True)
    for td in batches:
        norm.update(td["value_target"])
    options: dict[str, Any] = {"value_norm": norm, "clip_value": 0.1, "max_importance_ratio": 1.1}
    loss = kind.build(actor, critic(), delay_actor=True, **options)
    SoftUpdate(loss, eps=0.9)
    move(actor)
    loss.eval()
    check(loss, batches, "aot_eager")


@needs_value_norm
def test_running_statistics_that_move_compile_too() -> None:
    from torchrl.modules import PopArtValueNorm

    case = HEADS[0]
    batches = batches_of(case, actor := case.actor())
    move(actor)
    check(ClipPPOLoss(actor, critic(), value_norm=PopArtValueNorm(beta=0.5)), batches, "aot_eager")


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


@pytest.mark.parametrize("name", ["normal", "tree", "hybrid"])
def test_a_new_process_compiles_the_kl_at_once_and_once(name: str) -> None:
    """torch looks a KL up at its first use, and dynamo guards on what it has looked up."""
    script = f"""
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from tdheads import KLPENPPOLoss
from tests.batches import collect, move
from tests.cases import HEADS, critic
case = next(case for case in HEADS if case.name == {name!r})
actor = case.actor()
batches = [collect(case, actor, [11], seed=seed) for seed in range(3)]
move(actor)
counter = CompileCounterWithBackend("eager")
compiled = torch.compile(KLPENPPOLoss(actor, critic()), backend=counter, fullgraph=True)
for batch in batches:
    compiled(batch)
print(counter.frame_count)
"""
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "1", done.stderr[-2000:]
