"""Without validation the host never waits for the device; with it, for a known number of checks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests import counts
from tests.batches import TERMS, collect, move
from tests.cases import HEADS, LOSSES, HeadCase, LossCase, case_ids, critic
from tests.syncs import CountSyncs

B = 11
HYBRID = HEADS[-1]
all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
all_losses = pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))


def syncs(loss: nn.Module, td: object) -> dict[str, int]:
    """What waits in a forward and backward."""
    with CountSyncs() as mode:
        out = loss(td)
        sum(out[term] for term in TERMS).backward()
    return dict(mode.found)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: bool((x > 0).any()),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x + 1),
        lambda x: x.clone().__setitem__(x > 0, torch.zeros(2)),
        lambda x: torch.repeat_interleave(x, (x > 0).long()),
    ],
)
def test_the_counter_sees_what_waits(wait: object) -> None:
    x = torch.tensor([1.0, -1.0, 2.0])
    with CountSyncs() as mode:
        wait(x)  # type: ignore[operator]
    assert mode.found.total() >= 1


def test_the_counter_sees_the_backward_pass() -> None:
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return grad * grad.sum().item()

    x = torch.ones(3, requires_grad=True)
    with CountSyncs() as mode:
        Waits.apply(x).sum().backward()
    assert mode.found == {"_local_scalar_dense": 1}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@all_losses
@all_heads
def test_no_loss_waits_with_validation_off(case: HeadCase, kind: LossCase, padded: bool) -> None:
    td = collect(case, actor := case.actor(validate=False), [B])
    if padded:
        td["collector", "mask"] = torch.arange(B).unsqueeze(-1) % 3 != 0
    move(actor)
    aggregate = "none" if padded else "sum"
    loss = kind.build(
        actor, critic(), normalize_advantage=True, clip_value=0.1, aggregate=aggregate
    )
    assert syncs(loss, td) == {}


@pytest.mark.parametrize("mode", ["RANDOM", "DETERMINISTIC"])
@all_heads
def test_acting_does_not_wait_with_validation_off(case: HeadCase, mode: str) -> None:
    actor, td = case.actor(validate=False), case.inputs([B])
    with set_exploration_type(ExplorationType[mode]), torch.no_grad(), CountSyncs() as counted:
        actor(td)
    assert counted.found == {}


@all_losses
def test_the_number_of_checks_of_a_loss_is_known(kind: LossCase) -> None:
    actor = HYBRID.actor()
    batches = [collect(HYBRID, actor, [rows], seed=rows) for rows in (B, 7 * B)]
    move(actor)
    loss = kind.build(actor, critic())
    known = counts.expected()["losses"][f"{kind.name}, {HYBRID.name}"]["syncs"]
    for td in batches:
        assert sum(syncs(loss, td).values()) == known
