"""Under torch.compile(fullgraph=True) every head and loss equals eager, and compiles once.

All losses have one forward, with holes that each of them fills. So what is compiled, around every
head, is one loss whose holes are filled by all of them at once: around one head of each family by
inductor, around the others by "aot_eager", which traces forward and backward alike but generates no
code. On its own, each loss is compiled by inductor around a head of one leaf, and around two heads
of several leaves by "aot_eager".
"""

from __future__ import annotations

import copy
import inspect
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

from tdheads import ClipPPOLoss, KLPENPPOLoss, PolicyLoss, PPOLoss, SPOLoss
from tdheads.losses.policy import PolicyRows, Terms
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
HYBRID, MASKED = HEADS[-1], HEADS[1]
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


def batches_of(
    case: HeadCase,
    actor: nn.Module,
    *,
    padded: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[TensorDict]:
    batches = [collect(case, actor, [11], dtype, seed=seed) for seed in range(5)]
    for shift, td in enumerate(batches if padded else []):
        td["collector", "mask"] = (torch.arange(11) + shift).unsqueeze(-1) % 3 != 0
    return batches


# ---- the losses side by side


class Together(ClipPPOLoss, SPOLoss, KLPENPPOLoss, PPOLoss):
    """Maximises the sum of what the losses maximise, and writes what each of them writes."""

    settings = SPOLoss.settings | KLPENPPOLoss.settings | ClipPPOLoss.settings

    def _surrogate(self, terms: Terms) -> torch.Tensor:
        return sum(kind.build._surrogate(self, terms) for kind in LOSSES)

    def _variant_keys(self) -> list[Any]:
        return [key for kind in LOSSES for key in kind.build._variant_keys(self)]

    def _write_variant(self, out: TensorDict, rows: PolicyRows) -> None:
        for kind in LOSSES:
            kind.build._write_variant(self, out, rows)

    def _variant_rows(self, rows: PolicyRows) -> dict[Any, torch.Tensor]:
        found = [kind.build._variant_rows(self, rows) for kind in LOSSES]
        return {key: value for figures in found for key, value in figures.items()}


@all_losses
def test_a_loss_differs_from_others_in_its_holes_only(kind: LossCase) -> None:
    """So that the losses side by side stand for each of them."""
    assert kind.build.__bases__ == (PolicyLoss,)
    functions = [getattr(value, "fget", value) for value in vars(kind.build).values()]
    functions = [f for f in functions if inspect.isfunction(f)]
    # TorchRL gives each class a forward of its own, which wraps the inherited one
    own = {f.__name__ for f in functions if f.__qualname__.startswith(kind.build.__name__)}
    holes = {"_bounds", "_surrogate", "_variant_keys", "_variant_rows", "_write_variant"}
    outside_of_forward = {"__init__", "__setattr__", "reset"}
    assert own & set(dir(PolicyLoss)) <= holes | outside_of_forward


@all_heads
def test_the_losses_side_by_side_equal_each_of_them(case: HeadCase) -> None:
    td = collect(case, actor := case.actor(torch.float64), [11], torch.float64)
    move(actor)
    value, options = critic(torch.float64), {"normalize_advantage": True}
    figures, found = gradients(Together(actor, value, **options), td)
    total = {name: torch.zeros_like(grad) for name, grad in found.items()}
    objective = 0.0
    for i, kind in enumerate(LOSSES):  # entropy and critic, which all share, count once
        whole = i == 0
        loss = kind.build(actor, value if whole else None, entropy_bonus=whole, **options)
        out, grads = gradients(loss, td)
        objective += out.pop("loss_objective")
        for key, figure in out.items(True, True):
            torch.testing.assert_close(figures[key], figure)
        for name, grad in grads.items():
            total[name] += grad
    torch.testing.assert_close(figures["loss_objective"], objective)
    for name, grad in found.items():
        torch.testing.assert_close(grad, total[name])


#: heads whose kernels are generated too
FAMILIES = ("flat", "masked", "multi", "bits", "tanh", "sparse", "autoregressive", "hybrid")


def test_families_are_heads() -> None:
    assert set(FAMILIES) <= {case.name for case in HEADS}


@all_heads
def test_the_compiled_losses_equal_eager_and_compile_once(case: HeadCase) -> None:
    batches = batches_of(case, actor := case.actor(torch.float64), dtype=torch.float64)
    move(actor)
    loss = Together(actor, critic(torch.float64), normalize_advantage=True)
    check(loss, batches, "inductor" if case.name in FAMILIES else "aot_eager")
    assert loss.beta != 1  # it moved, without another compilation


# ---- each loss on its own


@all_losses
def test_a_compiled_loss_equals_eager_and_compiles_once(kind: LossCase) -> None:
    batches = batches_of(MASKED, actor := MASKED.actor())
    move(actor)
    check(kind.build(actor, critic(), normalize_advantage=True), batches, "inductor")


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
