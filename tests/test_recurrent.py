"""LSTM and GRU policies: collected a step at a time, trained on padded pieces of episodes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torchrl.objectives import HardUpdate
from torchrl.objectives.value import GAE

from tdheads import ClipPPOLoss, KLPENPPOLoss, PPOLoss, SPOLoss, diagnose
from tdheads.losses.rows import TRAJECTORIES
from tests.batches import TERMS, gradients, move
from tests.recurrent import (
    ACTIONS,
    CELLS,
    ENVS,
    LONGEST,
    STEPS,
    WIDTH,
    by_hand,
    collect,
    collector,
    networks,
    pieces,
)

EPSILON, BETA, ENTROPY = 1 / 4, 3 / 4, 1 / 64  # exact in float32
LOSSES: dict[str, Any] = {
    "ppo": (PPOLoss, {}),
    "clip": (ClipPPOLoss, {"clip_epsilon": EPSILON}),
    "kl-penalty": (KLPENPPOLoss, {"beta": BETA, "adapt_beta": False}),
    "spo": (SPOLoss, {"epsilon": EPSILON}),
}
all_cells = pytest.mark.parametrize("cell", CELLS)
all_actions = pytest.mark.parametrize("action", ACTIONS)
all_losses = pytest.mark.parametrize("name", LOSSES)


def build(name: str, actor: Any, critic: Any, **options: Any) -> Any:
    kind, own = LOSSES[name]
    return kind(actor, critic, entropy_coeff=ENTROPY, **own, **options)


def states(cell: str) -> list[str]:
    return ["recurrent_state"] if cell == "gru" else ["recurrent_state_h", "recurrent_state_c"]


def double(td: TensorDictBase) -> TensorDictBase:
    return td.apply(lambda x: x.double() if x.is_floating_point() else x)


# ---- collecting, and the first update


@all_losses
@all_actions
@all_cells
def test_ratios_of_the_first_update_are_one(cell: str, action: str, name: str) -> None:
    actor, critic = networks(cell, action)
    batch = collect(actor, action)
    assert batch["is_init"][:, 1:].sum() > ENVS  # episodes end inside of the batch
    assert (batch[states(cell)[0]] != 0).any()
    loss = build(name, actor, critic)
    for td in (batch, batch.reshape(-1), pieces(batch, 11)):
        out = loss(td)
        for figure in ("max_ratio", "mean_ratio", "ESS"):
            assert out[figure].item() == pytest.approx(1, abs=1e-5), figure
        assert out["kl_approx"].item() == pytest.approx(0, abs=1e-6)
    move(actor)
    assert abs(loss(batch)["max_ratio"].item() - 1) > 0.01


@all_cells
def test_without_the_start_of_the_episodes_they_are_not(cell: str) -> None:
    actor, critic = networks(cell, "composite")
    batch = collect(actor, "composite")
    batch["is_init"][:, 1:] = False  # the memory runs on into the next episode
    loss = ClipPPOLoss(actor, critic)
    with pytest.raises(ValueError, match=r"traj_ids.*changes without; give a recurrent network"):
        loss(batch)
    assert abs(loss(batch.exclude(TRAJECTORIES))["max_ratio"].item() - 1) > 0.01


@all_cells
def test_single_steps_in_another_order_are_refused(cell: str) -> None:
    actor, critic = networks(cell, "composite")
    batch = collect(actor, "composite")
    loss = ClipPPOLoss(actor, critic)
    loss.estimate(batch)
    steps = batch.reshape(-1)[torch.randperm(batch.numel())]
    with pytest.raises(ValueError, match="not single steps"):
        loss(steps)


@all_losses
@all_actions
@all_cells
def test_actions_are_legal_throughout_training(cell: str, action: str, name: str) -> None:
    loss = build(name, *networks(cell, action))
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.03)
    before = [p.detach().clone() for p in loss.parameters()]
    seen = 0
    for batch in collector(loss.actor_network, action, batches=3):
        for leaf in ACTIONS[action]:
            for _, mask, choice in leaf.dims(batch):
                assert mask.gather(-1, choice.unsqueeze(-1)).all()
                seen += (~mask).sum().item()
        loss.estimate(batch)
        for _ in range(2):
            out = loss(pieces(batch, 11))
            sum(out[term] for term in TERMS).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert seen > 0
    assert all(not torch.equal(p, old) for p, old in zip(loss.parameters(), before, strict=True))


# ---- padding


def expected(name: str, cell: str, actor: Any, critic: Any, td: TensorDictBase, action: str) -> Any:
    """The three terms from each episode by itself, as long as it is."""
    gain, bonus, value_loss = [], [], []
    layer, value = actor[-2], critic[-1]  # projections of the features
    for row in td:
        row = row[row["collector", "mask"].flatten()]
        first = [row[key][0, 0] for key in states(cell)]
        features = by_hand(cell, actor, row["observation"], first)
        now = row.clone()
        now["hidden"] = features
        layer(now)
        log_w = kl = entropy = torch.zeros(len(row), dtype=torch.float64)
        for leaf in ACTIONS[action]:
            for (new, mask, choice), (old, _, _) in zip(
                leaf.dims(now), leaf.dims(row), strict=True
            ):
                p, q = (x.masked_fill(~mask, -math.inf).log_softmax(-1) for x in (new, old))
                log_w = log_w + p.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
                kl = kl + (q.exp() * (q - p).masked_fill(~mask, 0)).sum(-1)
                entropy = entropy - (p.exp() * p.masked_fill(~mask, 0)).sum(-1)
            log_w = log_w - row[f"{leaf.key}_log_prob"]
        w, adv = log_w.exp(), row["advantage"].squeeze(-1)
        gain.append(
            {
                "ppo": w * adv,
                "clip": torch.minimum(w * adv, w.clamp(1 - EPSILON, 1 + EPSILON) * adv),
                "kl-penalty": w * adv - BETA * kl,
                "spo": w * adv - adv.abs() / (2 * EPSILON) * (w - 1) ** 2,
            }[name]
        )
        bonus.append(ENTROPY * entropy)
        guess = features @ value.module.weight.T + value.module.bias
        value_loss.append(smooth_l1_loss(guess, row["value_target"], reduction="none").squeeze(-1))
    terms = [-torch.cat(gain).mean(), -torch.cat(bonus).mean(), torch.cat(value_loss).mean()]
    return dict(zip(TERMS, terms, strict=True))


@all_losses
@all_actions
@all_cells
def test_padded_pieces_are_worth_the_episodes_one_by_one(cell: str, action: str, name: str) -> None:
    actor, critic = networks(cell, action)
    td = double(pieces(collect(actor, action), 11))
    lengths = td["collector", "mask"].sum(1)
    assert len(lengths.unique()) > 2  # of unequal length
    actor.double(), critic.double()
    move(actor, 0.3)
    loss = build(name, actor, critic).double()
    out, found = gradients(loss, td)
    terms = expected(name, cell, actor, critic, td, action)
    for term, wanted in terms.items():
        torch.testing.assert_close(out[term], wanted, rtol=1e-10, atol=1e-12)
    named = dict(loss.named_parameters())
    grads = torch.autograd.grad(sum(terms.values()), list(named.values()))
    assert set(found) == set(named)
    for key, wanted in zip(named, grads, strict=True):
        torch.testing.assert_close(found[key], wanted, rtol=1e-8, atol=1e-12)
        assert wanted.any()


@all_losses
@all_actions
@all_cells
def test_what_padded_rows_hold_changes_no_bit(cell: str, action: str, name: str) -> None:
    actor, critic = networks(cell, action)
    td = pieces(collect(actor, action), 11)
    move(actor, 0.3)
    loss = build(name, actor, critic, normalize_advantage=True)
    padded = ~td["collector", "mask"]
    assert padded.sum() > 3
    dirty = td.clone()
    for key, value in dirty.items(True, True):
        if value.is_floating_point():
            value[padded] = math.nan
        elif value.dtype == torch.bool and key not in (("collector", "mask"), "is_init"):
            value[padded] = False  # no legal choice
        elif value.dtype == torch.int64:
            value[padded] = -77
    (clean_out, clean), (dirty_out, found) = gradients(loss, td), gradients(loss, dirty)
    for key, figure in clean_out.items(True, True):
        torch.testing.assert_close(dirty_out[key], figure, rtol=0, atol=0)
    assert set(found) == set(clean)
    for key, grad in clean.items():
        assert torch.equal(found[key], grad), key
        assert grad.any()


# ---- advantages


def gae_by_hand(
    cell: str, actor: Any, critic: Any, batch: TensorDictBase, gamma: float, lmbda: float
) -> Tensor:
    """GAE with the value of every state from the memory that was stored there."""

    def values(td: TensorDictBase, start: Tensor) -> Tensor:
        out = []
        for row, first in zip(td.reshape(-1), start.flatten(), strict=True):
            state = [row[key][0] * ~first for key in states(cell)]
            out.append(by_hand(cell, actor, row["observation"][None], state))
        return (torch.cat(out) @ critic[-1].module.weight.T + critic[-1].module.bias).view(
            *td.shape
        )

    value = values(batch, batch["is_init"])
    following = values(batch["next"], torch.zeros_like(batch["is_init"]))
    after = batch["next"]
    delta = after["reward"].squeeze(-1) - value
    delta = delta + gamma * following * ~after["terminated"].squeeze(-1)
    advantage = torch.zeros_like(delta)
    running = torch.zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        running = delta[:, t] + gamma * lmbda * running * ~after["done"][:, t, 0]
        advantage[:, t] = running
    return advantage.unsqueeze(-1)


@all_cells
@pytest.mark.parametrize("how", ["estimate", "forward"])
@pytest.mark.parametrize("functional", [True, False])
def test_the_advantage_is_that_of_the_memory_at_each_step(
    cell: str, how: str, functional: bool
) -> None:
    actor, critic = networks(cell, "composite")
    batch = collect(actor, "composite").exclude("advantage", "value_target")
    loss = ClipPPOLoss(actor, critic, functional=functional)
    loss.make_value_estimator("gae", gamma=0.9, lmbda=0.8)
    with torch.no_grad():
        wanted = gae_by_hand(cell, actor, critic, batch, 0.9, 0.8)
        if how == "estimate":
            found = loss.estimate(batch)["advantage"]
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        else:  # with ratios of 1 the objective is minus the mean
            found = loss(batch)["loss_objective"]
            torch.testing.assert_close(found, -wanted.mean(), rtol=1e-4, atol=1e-5)


@all_cells
@pytest.mark.parametrize("estimator", ["td0", "td1", "tdlambda", "gae", "class", "instance"])
def test_every_estimator_runs_with_a_recurrent_critic(cell: str, estimator: str) -> None:
    actor, critic = networks(cell, "multi-discrete")
    batch = collect(actor, "multi-discrete").exclude("advantage", "value_target")
    loss = ClipPPOLoss(actor, critic)
    own = {"gamma": 0.9, "lmbda": 0.8, "value_network": critic}
    if estimator == "class":
        loss.make_value_estimator(GAE, **own)
    elif estimator == "instance":
        loss.make_value_estimator(GAE(**own))
    else:
        loss.make_value_estimator(estimator)
    assert loss.estimate(batch)["advantage"].isfinite().all()


# ---- what is not the forward runs over time too


@all_cells
def test_the_critic_loss_alone_is_that_of_the_forward(cell: str) -> None:
    actor, critic = networks(cell, "composite")
    batch = collect(actor, "composite")
    move(actor)  # the stored states are not those of the weights any more
    loss = ClipPPOLoss(actor, critic)
    torch.testing.assert_close(loss.loss_critic(batch)[0].mean(), loss(batch)["loss_critic"])


@all_cells
def test_diagnose_looks_at_the_policy_over_time(cell: str) -> None:
    actor, critic = networks(cell, "composite")
    batch = collect(actor, "composite")
    loss = ClipPPOLoss(actor, critic)
    report = diagnose(loss, batch)
    assert report.ok, report
    assert diagnose(loss, pieces(batch, 11)).ok
    batch["is_init"][:, 1:] = False
    assert diagnose(loss, batch)["ratio"]


@all_cells
def test_a_delayed_actor_keeps_a_memory_of_its_own(cell: str) -> None:
    actor, critic = networks(cell, "composite")
    batch = collect(actor, "composite")
    loss = ClipPPOLoss(actor, critic, delay_actor=True)
    updater = HardUpdate(loss, value_network_update_interval=1)
    assert loss(batch)["max_ratio"].item() == pytest.approx(1, abs=1e-5)
    move(loss.actor_network_params)
    moved = loss(batch)["max_ratio"].item()
    assert abs(moved - 1) > 0.01
    plain = ClipPPOLoss(actor, critic)
    assert plain(batch)["max_ratio"].item() == pytest.approx(moved, rel=1e-5)
    for _ in range(2):  # HardUpdate counts first, and copies at the next step
        updater.step()
    # the target is the policy now: what is left is the weight
    assert loss(batch)["clip_fraction"] == 0 < plain(batch)["clip_fraction"]


def test_sizes_of_the_batch() -> None:
    batch = collect(networks("lstm", "composite")[0], "composite")
    assert batch.shape == torch.Size([ENVS, STEPS])
    assert batch["recurrent_state_h"].shape == torch.Size([ENVS, STEPS, 1, WIDTH])
    assert pieces(batch, 11).shape == torch.Size([11, LONGEST])
