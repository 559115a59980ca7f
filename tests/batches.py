"""Collected batches for the loss tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.cases import HeadCase

TERMS = ("loss_objective", "loss_entropy", "loss_critic")


def collect(
    case: HeadCase,
    actor: nn.Module,
    batch: Sequence[int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> TensorDict:
    """Act once with exploration; advantage and target are random."""
    torch.manual_seed(seed)
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        td = actor(case.inputs(batch, seed, dtype=dtype))
    td["advantage"] = torch.randn(*batch, 1, dtype=dtype)
    td["value_target"] = torch.randn(*batch, 1, dtype=dtype)
    td["state_value"] = torch.randn(*batch, 1, dtype=dtype)
    return td


def move(module: nn.Module, size: float = 0.1, seed: int = 7) -> None:
    """Change the weights, as an update would."""
    gen = torch.Generator().manual_seed(seed)
    for param in module.parameters():
        step = torch.randn(param.shape, generator=gen, dtype=torch.float64)
        param.data += size * step.to(param.dtype)


def gradients(loss: nn.Module, td: TensorDict) -> tuple[TensorDict, dict[str, Tensor]]:
    """Run the loss; return its output and the gradient of the sum of its terms, by parameter."""
    loss.zero_grad()
    out = loss(td)
    sum(out[term] for term in TERMS if term in out.keys()).backward()
    named = dict(loss.named_parameters())
    return out, {n: p.grad.clone() for n, p in named.items() if p.grad is not None}


def with_garbage(td: TensorDict, rows: list[int], garbage: float) -> TensorDict:
    """Fill the rows with garbage in every entry and mark them as invalid."""
    td = td.clone()
    for key, value in td.items(True, True):
        if value.dtype == torch.bool:
            value[rows] = False
        elif value.is_floating_point():
            value[rows] = garbage
        else:
            value[rows] = -77
        td[key] = value
    valid = torch.ones(td.batch_size, dtype=torch.bool)
    valid[rows] = False
    td["collector", "mask"] = valid.unsqueeze(-1)
    return td


def check_finite_differences(loss: nn.Module, td: TensorDict, terms: Sequence[str]) -> None:
    """Compare the largest entry of every gradient of every term with a difference of the term."""
    for term in terms:
        loss.zero_grad()
        loss(td)[term].backward()
        for param in loss.parameters():
            grad = torch.zeros_like(param) if param.grad is None else param.grad
            index = int(grad.abs().argmax())
            numeric = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    param.view(-1)[index] += step
                    numeric.append(loss(td)[term].item())
                    param.view(-1)[index] -= step
            slope = (numeric[0] - numeric[1]) / 2e-6
            assert grad.view(-1)[index].item() == pytest.approx(slope, rel=1e-4, abs=1e-7)
