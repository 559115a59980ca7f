"""A loss in DistributedDataParallel: two processes with half the batch each equal one with all.

The gradient of DistributedDataParallel is the mean over processes. That of a loss is a mean over
valid rows, so that the two agree where every process has as many valid rows; where they have not,
every process counts as much as any other, whatever its number of rows. Advantages are normalised
over the rows of the process: for a joint normalisation, normalise before the batch is split.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tensordict.nn import TensorDictModule
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tdheads import CategoricalHead, make_actor
from tests.batches import gradients
from tests.cases import FEATURES, HEADS, LOSSES, LossCase, case_ids, critic
from tests.replicas import STEPS, VALUES, WORLD, Step, run

SECONDS = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have written."""
    folder = tmp_path_factory.mktemp("ddp")
    processes = torch.multiprocessing.spawn(run, (str(folder),), nprocs=WORLD, join=False)
    end = time.monotonic() + SECONDS
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < end, f"two processes needed more than {SECONDS} s"
    finally:
        for process in processes.processes:
            process.kill()
    return folder


@pytest.fixture
def replicas(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=case_ids(STEPS))
def test_two_processes_have_the_gradient_of_one_on_the_joined_batch(
    step: Step, replicas: list[dict[str, Any]]
) -> None:
    """Without find_unused_parameters: an irrelevant leaf has a gradient of 0, not none."""
    loss, td = step.loss(), step.batch()
    _, expected = gradients(loss, td)
    assert set(expected) == {name for name, _ in loss.named_parameters()}
    for results in replicas:
        found, _ = results[step.name]
        assert set(found) == set(expected)
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_example_normalizes_over_all_processes(folder: Path) -> None:
    parts = [torch.load(folder / f"normalized-{rank}.pt") for rank in range(WORLD)]
    expected = (VALUES - VALUES.mean()) / VALUES.std(correction=0)
    torch.testing.assert_close(torch.cat(parts), expected)


@pytest.mark.slow
def test_the_halves_differ_and_so_do_their_gradients() -> None:
    step = STEPS[0]
    loss, td = step.loss(), step.batch()
    _, whole = gradients(loss, td)
    _, half = gradients(loss, td[: len(td) // 2])
    assert any(not torch.allclose(half[name], grad, rtol=1e-2) for name, grad in whole.items())


@pytest.mark.parametrize("head", HEADS, ids=case_ids(HEADS))
@pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
def test_every_parameter_has_a_gradient(kind: LossCase, head: Any) -> None:
    """Which is what DistributedDataParallel waits for."""
    from tests.batches import collect

    td = collect(head, actor := head.actor(), [5])
    td["collector", "mask"] = torch.zeros(5, 1, dtype=torch.bool)
    for entropy_bonus in (True, False):
        loss = kind.build(actor, critic(), functional=False, entropy_bonus=entropy_bonus)
        _, grads = gradients(loss, td)
        assert set(grads) == {name for name, _ in loss.named_parameters()}


@pytest.fixture
def one_process(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", (tmp_path / "store").as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
def test_networks_in_ddp_are_refused_inside_a_loss(kind: LossCase, functional: bool) -> None:
    def backbone(net: nn.Module) -> TensorDictModule:
        return TensorDictModule(net, ["observation"], ["hidden"])

    def actor(net: nn.Module) -> nn.Module:
        return make_actor(backbone(net), CategoricalHead("action", 3), num_features=13)

    linear = nn.Linear(FEATURES, 13)
    wrapped = DistributedDataParallel(linear)
    value = DistributedDataParallel(nn.Linear(FEATURES, 1))
    cases = {
        "actor_network": [
            (DistributedDataParallel(actor(linear)), critic()),
            (actor(wrapped), critic()),
        ],
        "critic_network": [
            (actor(linear), DistributedDataParallel(critic())),
            (actor(linear), TensorDictModule(value, ["observation"], ["state_value"])),
        ],
    }
    message = r"{}: expected a plain network, got one in .*functional=False and wrap the loss"
    for name, networks in cases.items():
        for pair in networks:
            with pytest.raises(TypeError, match=message.format(name)):
                kind.build(*pair, functional=functional)
