"""The deterministic actor of every head as a torch.export program and as an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.cases import HEADS, HeadCase, case_ids

all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
pytestmark = [
    pytest.mark.slow,
    # tensordict's sequence sets the exploration type around its modules; it is put back
    pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects happened"),
]


class Plain(nn.Module):
    """An actor with tensors in and tensors out, as deployment wants it."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor
        self.keys = list(actor.in_keys)

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        batch = TensorDict(dict(zip(self.keys, inputs, strict=True)), inputs[0].shape[:1])
        out = self.actor(batch)
        return [out.get(key) for key in self.actor.dist_sample_keys]


def tensors(actor: nn.Module, td: TensorDict) -> tuple[Tensor, ...]:
    return tuple(td[key] for key in actor.in_keys)


@all_heads
@pytest.mark.parametrize("strict", [True, False])
def test_torch_export_with_a_dynamic_batch(case: HeadCase, strict: bool) -> None:
    actor = case.actor(validate=False)
    rows = torch.export.Dim("rows", min=2)
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        program = torch.export.export(
            Plain(actor),
            tensors(actor, case.inputs([3])),
            dynamic_shapes=(tuple({0: rows} for _ in actor.in_keys),),
            strict=strict,
        )
        more = case.inputs([11], seed=5)
        found = program.module()(*tensors(actor, more))
        expected = actor(more.clone())
    for key, action in zip(actor.dist_sample_keys, found, strict=True):
        torch.testing.assert_close(action, expected[key])


@all_heads
# from torch's own exporter and from what it imports
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_onnx(case: HeadCase, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'tdheads[onnx]'")
    runtime: Any = pytest.importorskip("onnxruntime", reason="pip install 'tdheads[onnx]'")
    actor = case.actor(validate=False)
    td = case.inputs([3])
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        program = torch.onnx.export(
            Plain(actor), tensors(actor, td), dynamo=True, verbose=False, optimize=False
        )
        expected = actor(td.clone())
    program.save(tmp_path / "actor.onnx")
    session = runtime.InferenceSession(str(tmp_path / "actor.onnx"))
    names = [entry.name for entry in session.get_inputs()]
    inputs = [value.numpy() for value in tensors(actor, td)]
    found = session.run(None, dict(zip(names, inputs, strict=True)))
    for key, action in zip(actor.dist_sample_keys, found, strict=True):
        np.testing.assert_allclose(action, expected[key].numpy(), rtol=1e-5, atol=1e-5)
