"""Policies and batches small enough to work out every number by hand."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn

from tdheads import CategoricalHead, CompositeHead


class Constant(nn.Module):
    """Writes the same learnable row for every row of the batch."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.tensor(values))

    def forward(self, observation: Tensor) -> Tensor:
        return self.row.expand(*observation.shape[:-1], -1)


def constant_actor(*leaves: str, logits: tuple[float, ...]) -> ProbabilisticTensorDictSequential:
    nets = [
        TensorDictModule(Constant(*logits), ["observation"], [f"{leaf}_logits"]) for leaf in leaves
    ]
    heads = [CategoricalHead(leaf, len(logits)) for leaf in leaves]
    head = heads[0] if len(heads) == 1 else CompositeHead(*heads)
    return ProbabilisticTensorDictSequential(*nets, head)


def constant_critic(value: float) -> TensorDictModule:
    return TensorDictModule(Constant(value), ["observation"], ["state_value"])


def three_rows() -> TensorDict:
    """Old policy (1/2, 1/2); actions 0, 1, 0 with advantages 1, -2, -1."""
    td = TensorDict({"observation": torch.zeros(3, 1)}, [3])
    td["action"] = torch.tensor([0, 1, 0])
    td["action_log_prob"] = torch.full((3,), math.log(0.5))
    td["advantage"] = torch.tensor([[1.0], [-2.0], [-1.0]])
    td["value_target"] = torch.tensor([[1.0], [3.0], [0.0]])
    return td


NEW_POLICY = (math.log(4.0), 0.0)  # probabilities 0.8 and 0.2


def two_leaves() -> tuple[ProbabilisticTensorDictSequential, TensorDict]:
    """Leaf a moves from 1/2 to 0.8 (ratio 1.6), leaf b from 1/2 to 0.3125 (0.625): jointly 1."""
    nets = [
        TensorDictModule(Constant(math.log(4.0), 0.0), ["observation"], ["a_logits"]),
        TensorDictModule(Constant(math.log(0.3125 / 0.6875), 0.0), ["observation"], ["b_logits"]),
    ]
    head = CompositeHead(CategoricalHead("a", 2), CategoricalHead("b", 2))
    td = three_rows()[:1]
    for leaf in ("a", "b"):
        td[leaf] = torch.tensor([0])
        td[f"{leaf}_log_prob"] = torch.full((1,), math.log(0.5))
        td[f"{leaf}_logits"] = torch.zeros(1, 2)
    return ProbabilisticTensorDictSequential(*nets, head), td
