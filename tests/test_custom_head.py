"""The documented example of a user's own head works in make_head, in composites and in the loss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded, Categorical, Composite
from torchrl.envs.utils import ExplorationType, set_exploration_type

from examples.custom_head import BINS, BinsHead, bins_head
from tdheads import ClipPPOLoss, make_actor, make_head, register_head
from tdheads.heads.registry import FACTORIES
from tests.cases import FEATURES, critic

B = 5


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(FACTORIES)
    register_head(Bounded)(bins_head)
    yield
    FACTORIES.clear()
    FACTORIES.update(before)


def test_make_head_takes_it_and_the_loss_trains_it() -> None:
    spec = Composite(kind=Categorical(3), where=Bounded(-1.0, 3.0, (2,)))
    head = make_head(spec)
    assert isinstance(head.leaves[1], BinsHead)
    body = TensorDictModule(nn.Linear(FEATURES, 16), ["observation"], ["hidden"])
    actor = make_actor(body, head, num_features=16)
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        td = actor(TensorDict({"observation": torch.randn(B, FEATURES)}, [B]))
    assert spec.expand(B).is_in(td.select("kind", "where"))
    td["advantage"] = td["value_target"] = torch.randn(B, 1)
    out = ClipPPOLoss(actor, critic())(td)
    assert out["max_ratio"] == 1
    out["loss_objective"].backward()
    assert all(p.grad is not None for p in actor.parameters())


def test_every_bin_is_written_and_read_back() -> None:
    head = make_head(Bounded(torch.tensor([0.0]), torch.tensor([0.3])))
    logits = torch.randn(1, BINS)
    dist = head.get_dist(TensorDict({"action_logits": logits}, [1]))
    values = torch.linspace(0, 0.3, BINS).view(BINS, 1, 1)
    torch.testing.assert_close(dist.log_prob(values).exp().sum(), torch.tensor(1.0))
    torch.testing.assert_close(dist.log_prob(values).squeeze(-1), logits.log_softmax(-1).squeeze(0))
