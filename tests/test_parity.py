"""The same numbers as TorchRL's losses, where those are right."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tensordict.nn import set_composite_lp_aggregate
from torchrl import objectives
from torchrl.objectives import ClipPPOLoss as TorchRLClipPPOLoss

import tdheads
from tdheads import ClipPPOLoss, LeafHead
from tests.batches import collect, gradients, move
from tests.cases import HEADS, HeadCase, case_ids, critic

SHARED = ("loss_objective", "loss_entropy", "loss_critic", "entropy", "kl_approx", "clip_fraction")
# ours are one figure over all rows; TorchRL's are one per entry of the other dims
PER_ROW_DIM_ONLY = ("ESS", "max_ratio", "mean_ratio", "explained_variance")
# TorchRL takes the one log-prob of a composite with one leaf for an aggregated one, and warns
pytestmark = pytest.mark.filterwarnings("ignore:You are using a composite distribution")


# theirs takes the entropy of a dependent leaf at the stored actions; ours is exact
CHAIN_RULE = ("conditional", "mask given", "tree", "gated list")


def flag(value: bool | None) -> Any:
    return contextlib.nullcontext() if value is None else set_composite_lp_aggregate(value)


@pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
@pytest.mark.parametrize("batch", [[11], [3, 5], [2, 3, 5]], ids=str)
@pytest.mark.parametrize("aggregate", [None, True, False])
def test_values_and_gradients_equal_torchrls(
    case: HeadCase, batch: Sequence[int], aggregate: bool | None
) -> None:
    dtype = torch.float64
    with flag(aggregate):
        actor, value = case.actor(dtype), critic(dtype)
        td = collect(case, actor, batch, dtype)
        move(actor, 0.05)
        options: dict[str, Any] = {"entropy_coeff": 0.3, "clip_epsilon": 0.1, "critic_coeff": 0.7}
        options["entropy_bonus"] = case.name not in CHAIN_RULE
        ours, ours_grad = gradients(ClipPPOLoss(actor, value, **options), td)
        theirs, theirs_grad = gradients(TorchRLClipPPOLoss(actor, value, **options), td)
    assert 0 < ours["clip_fraction"] < 1
    names = SHARED if len(batch) > 1 else SHARED + PER_ROW_DIM_ONLY
    for name in [name for name in names if name in theirs.keys()]:
        torch.testing.assert_close(ours[name], theirs[name].squeeze(), rtol=0, atol=1e-9)
    assert ours_grad.keys() == theirs_grad.keys()
    assert sum(grad.abs().sum() for grad in ours_grad.values()) > 0.1
    for name, grad in ours_grad.items():
        torch.testing.assert_close(grad, theirs_grad[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
def test_float32_agrees_to_1e_6(case: HeadCase, record_property: Any) -> None:
    actor, value = case.actor(), critic()
    td = collect(case, actor, [64])
    move(actor)
    bonus = case.name not in CHAIN_RULE
    ours, ours_grad = gradients(ClipPPOLoss(actor, value, entropy_bonus=bonus), td)
    theirs, theirs_grad = gradients(TorchRLClipPPOLoss(actor, value, entropy_bonus=bonus), td)
    names = [name for name in SHARED if name in theirs.keys()]
    gaps = [(ours[name] - theirs[name].squeeze()).abs().max() for name in names]
    gaps += [(grad - theirs_grad[name]).abs().max() for name, grad in ours_grad.items()]
    worst = max(gaps).item()
    record_property("worst_difference", worst)
    assert worst <= 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {"clip_epsilon": (0.1, 0.3)},
        {"clip_value": True},
        {"clip_value": 0.05, "loss_critic_type": "l2"},
        {"loss_critic_type": "l1", "critic_coeff": 0.25},
        {"normalize_advantage": True},
        {"entropy_bonus": False},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"max_importance_ratio": 1.01},
        {"separate_losses": True},
        {"functional": False},
        {"log_explained_variance": False},
    ],
    ids=str,
)
def test_every_keyword_means_what_it_means_there(options: dict[str, Any]) -> None:
    case, dtype = HEADS[-1], torch.float64
    actor, value = case.actor(dtype), critic(dtype)
    td = collect(case, actor, [11], dtype)
    move(actor)
    results = [cls(actor, value, **options) for cls in (ClipPPOLoss, TorchRLClipPPOLoss)]
    ours, theirs = (loss(td) for loss in results)
    for name in theirs.keys():
        if name == "composite_entropy":  # theirs has one figure per row
            continue
        torch.testing.assert_close(
            ours[name], theirs[name].reshape(ours[name].shape), rtol=0, atol=1e-9
        )
    if options.get("reduction") == "none":
        assert ours["loss_objective"].shape == torch.Size([11])
        return
    for loss, out in zip(results, (ours, theirs), strict=True):
        loss.zero_grad()
        sum(v for k, v in out.items() if k.startswith("loss_")).backward()
        loss.kept = [p.grad.clone() for p in loss.parameters()]
    for a, b in zip(results[0].kept, results[1].kept, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_proximal_policy_of_delay_actor() -> None:
    from torchrl.objectives import SoftUpdate

    case, dtype = HEADS[-1], torch.float64
    outs = []
    for cls in (ClipPPOLoss, TorchRLClipPPOLoss):
        torch.manual_seed(3)
        actor, value = case.actor(dtype), critic(dtype)
        td = collect(case, actor, [11], dtype)
        move(actor, 0.05)
        loss = cls(actor, value, delay_actor=True, max_importance_ratio=1.05)
        updater = SoftUpdate(loss, eps=0.9)
        move(actor, 0.2, seed=8)
        updater.step()
        outs.append(gradients(loss, td))
    (ours, ours_grad), (theirs, theirs_grad) = outs
    for name in ("loss_objective", "clip_fraction", "kl_approx", "ESS", "max_ratio", "mean_ratio"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-9)
    for name, grad in ours_grad.items():
        torch.testing.assert_close(grad, theirs_grad[name], rtol=0, atol=1e-9)


# theirs refuses a composite head, and takes the scale that the head holds today for the stored one
ALONE = [
    case for case in HEADS if isinstance(case.build(), LeafHead) and case.name != "normal free"
]
OTHERS = [("PPOLoss", case) for case in HEADS] + [("KLPENPPOLoss", case) for case in ALONE]


@pytest.mark.parametrize(("name", "case"), OTHERS, ids=lambda x: getattr(x, "name", x))
@pytest.mark.parametrize("batch", [[11], [3, 5]], ids=str)
def test_the_other_losses_equal_torchrls(name: str, case: HeadCase, batch: Sequence[int]) -> None:
    dtype = torch.float64
    actor, value = case.actor(dtype), critic(dtype)
    td = collect(case, actor, batch, dtype)
    move(actor, 0.1)
    options: dict[str, Any] = {"entropy_bonus": case.name not in CHAIN_RULE, "critic_coeff": 0.7}
    losses = [getattr(library, name)(actor, value, **options) for library in (tdheads, objectives)]
    if name == "KLPENPPOLoss":  # theirs puts the beta after its move into the gradient
        for loss in losses:
            loss.increment = loss.decrement = 1.0
    (ours, ours_grad), (theirs, theirs_grad) = (gradients(loss, td) for loss in losses)
    for key in ("loss_objective", "loss_critic", "kl_approx"):
        torch.testing.assert_close(ours[key], theirs[key].squeeze(), rtol=0, atol=1e-9)
    if name == "KLPENPPOLoss":  # theirs has one figure per row
        assert ours["kl"] > 1e-4
        torch.testing.assert_close(ours["kl"], theirs["kl"].mean(), rtol=0, atol=1e-9)
    for key, grad in ours_grad.items():
        torch.testing.assert_close(grad, theirs_grad[key], rtol=0, atol=1e-9)
