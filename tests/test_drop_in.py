"""What a script written for TorchRL's PPO losses relies on; see also tests/upstream."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
import torchrl.objectives
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import ClipPPOLoss as TorchRLClipPPOLoss
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import GAE

import tdheads
from tdheads import ClipPPOLoss
from tdheads.losses.module import AUTO_LOSS_MASK_KEYS
from tests.batches import collect, gradients
from tests.cases import FEATURES, HEADS, HeadCase, critic
from tests.versions import needs_multi_agent_gae

ONE_LEAF, HYBRID = HEADS[1], HEADS[-1]


def test_the_entropy_of_an_only_leaf_is_written_once() -> None:
    # an estimate, as that of a squashed normal, would not be reproduced by a second draw
    for case, written in ((ONE_LEAF, False), (HYBRID, True)):
        td = collect(case, actor := case.actor(), [5])
        loss = ClipPPOLoss(actor, critic())
        assert ("composite_entropy" in loss(td).keys()) is written
        assert any(key[0] == "composite_entropy" for key in loss.out_keys) is written


@pytest.mark.parametrize("drop", ["terminated", None])
def test_without_terminated_an_episode_ends_where_it_is_done(drop: str | None) -> None:
    td = collect(ONE_LEAF, actor := ONE_LEAF.actor(), [3, 5])
    td = td.exclude("advantage", "value_target", "state_value")
    td["next"] = ONE_LEAF.inputs([3, 5], seed=4)
    td["next", "reward"] = torch.randn(3, 5, 1)
    td["next", "done"] = torch.rand(3, 5, 1) < 0.4
    td["next", "terminated"] = td["next", "done"].clone()
    value = critic()
    loss = ClipPPOLoss(actor, value)
    loss.make_value_estimator(gamma=0.9, lmbda=0.8)
    with torch.no_grad():
        outside = GAE(gamma=0.9, lmbda=0.8, value_network=value)(td.clone())
    found = loss(td.exclude(("next", str(drop))))
    torch.testing.assert_close(found["loss_objective"], -outside["advantage"].mean())


# ---- advantages without a trailing dim


def foreign_actor() -> ProbabilisticActor:
    """TorchRL's usual continuous actor: its distribution has open event dims."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(FEATURES, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            loc, scale = self.net(x).chunk(2, -1)
            return loc, scale.exp()

    net = TensorDictModule(Split(), ["observation"], ["loc", "scale"])
    return ProbabilisticActor(
        net, ["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )


@pytest.mark.parametrize("batch", [[5], [5, 7]], ids=str)
@pytest.mark.parametrize("case", [ONE_LEAF, HYBRID, None], ids=["one leaf", "hybrid", "foreign"])
def test_a_flat_advantage_is_refused_for_every_kind_of_actor(
    case: HeadCase | None, batch: list[int]
) -> None:
    if case is None:
        actor: Any = foreign_actor()
        td = actor(TensorDict({"observation": torch.randn(*batch, FEATURES)}, batch)).detach()
        td["value_target"] = torch.zeros(*batch, 1)
    else:
        td = collect(case, actor := case.actor(), batch)
    td["advantage"] = torch.randn(batch)
    expected = re.escape(f"'advantage': expected shape {[*batch, 1]}, got {batch};")
    with pytest.raises(ValueError, match=f"{expected} .*outer product"):
        ClipPPOLoss(actor, critic())(td)
    td["advantage"] = td["advantage"].unsqueeze(-1)
    torch.testing.assert_close(
        ClipPPOLoss(actor, critic())(td)["loss_objective"], -td["advantage"].mean()
    )


# ---- the critic's loss, which scripts also call by itself


@pytest.mark.parametrize("clip", [None, 0.1])
def test_loss_critic_returns_what_torchrls_does(clip: float | None) -> None:
    td = collect(HYBRID, actor := HYBRID.actor(), [3, 5])
    value = critic()
    ours, _, _ = ClipPPOLoss(actor, value, clip_value=clip, critic_coeff=0.7).loss_critic(td)
    theirs = TorchRLClipPPOLoss(actor, value, clip_value=clip, critic_coeff=0.7).loss_critic(td)
    assert ours.shape == torch.Size([3, 5, 1])
    torch.testing.assert_close(ours, theirs[0])


def two_values() -> tuple[nn.Module, TensorDict]:
    """Two values, those of the observation: one meets its target, the other is a constant."""
    values = [("state_value", "a"), ("state_value", "b")]
    scale = nn.Linear(2, 2, bias=False)
    nn.init.eye_(scale.weight)
    net = nn.Sequential(scale, nn.Unflatten(-1, (2, 1)))
    both = TensorDictModule(lambda obs: net(obs).unbind(-2), ["values"], values)
    both.net = net
    td = collect(ONE_LEAF, ONE_LEAF.actor(), [3])
    td["values"] = torch.tensor([[1.0, 0.5], [3.0, 0.5], [0.0, 0.5]])
    td["value_target"] = {"a": td["values"][:, :1].clone(), "b": torch.tensor([[1.0], [3.0], [0]])}
    td["state_value"] = {"a": td["values"][:, :1].clone(), "b": torch.zeros(3, 1)}
    return both, td


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(
    ("clip", "rows"),
    [
        (None, [0.25, 6.25, 0.25]),  # (0.5 - 1)^2, (0.5 - 3)^2, (0.5 - 0)^2
        (0.1, [0.81, 8.41, 0.25]),  # value 0, clipped to 0.1: (0.1 - 1)^2, (0.1 - 3)^2, and 0.5^2
    ],
)
def test_a_critic_of_several_values(clip: float | None, rows: list[float], separate: bool) -> None:
    both, td = two_values()
    before = td.clone()
    loss = ClipPPOLoss(
        ONE_LEAF.actor(), both, loss_critic_type="l2", clip_value=clip, separate_losses=separate
    )
    terms, clipped, explained = loss.loss_critic(td)
    assert (td == before).all()
    assert terms["a"].tolist() == [[0.0], [0.0], [0.0]]
    assert terms["b"].squeeze(-1).tolist() == pytest.approx(rows)
    assert explained["a"] == pytest.approx(1)
    assert explained["b"] == pytest.approx(0, abs=1e-6)
    assert clipped is None if clip is None else clipped["b"].tolist() == [[1.0], [1.0], [1.0]]
    out, grads = gradients(loss, td)
    assert out["loss_critic"].item() == pytest.approx(sum(rows) / 3)
    assert out["explained_variance"].item() == pytest.approx(0.5)
    assert clip is None or out["value_clip_fraction"] == 0.5
    assert set(out.keys(True, True)) == set(loss.out_keys)
    # d/dw_bb of (v - t)^2, v = 0.5 w: 2 * 0.5 * (v - t) in rows that are not clipped against it
    moved = [0.5 - 1, 0.5 - 3, 0.5] if clip is None else [0, 0, 0.5]
    [grad] = [grad for name, grad in grads.items() if "critic" in name]
    assert grad[1, 1].item() == pytest.approx(sum(moved) / 3)


# ---- arguments and messages


@pytest.mark.parametrize("epsilon", [(0.1, 0.2, 0.3), (0.1,), (-0.1, 0.2), (1.0, 0.2), -0.1])
def test_a_bad_epsilon_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match="clip_epsilon: expected"):
        ClipPPOLoss(ONE_LEAF.actor(), critic(), clip_epsilon=epsilon)


@pytest.mark.parametrize("change", [{"clip_value": 0.25}, {"clip_value": True}], ids=str)
def test_a_missing_old_value_is_answered_in_torchrls_words(change: dict[str, Any]) -> None:
    td = collect(ONE_LEAF, actor := ONE_LEAF.actor(), [5]).exclude("state_value")
    found = []
    for cls in (ClipPPOLoss, TorchRLClipPPOLoss):
        with pytest.raises(KeyError) as info:
            cls(actor, critic(), **change)(td)
        found.append(str(info.value))
    first, _, last = found[1].strip("\"'").partition(" 'value_key' ")
    assert first in found[0]
    assert last in found[0]


@pytest.mark.parametrize("name", ["PPOLoss", "ClipPPOLoss", "KLPENPPOLoss", "SPOLoss"])
def test_the_signature_shows_every_keyword(name: str) -> None:
    shown = inspect.signature(getattr(tdheads, name)).parameters
    own = {"ClipPPOLoss": {"clip_epsilon"}, "KLPENPPOLoss": {"dtarg", "beta"}}.get(name, set())
    assert {"actor_network", "critic_network", "entropy_coeff", "aggregate", *own} <= set(shown)
    assert "options" not in shown


def test_the_validity_masks_looked_for_are_torchrls() -> None:
    theirs = getattr(torchrl.objectives, "AUTO_LOSS_MASK_KEYS", None)
    if theirs is None:
        pytest.skip("torchrl gives them a name since 0.14")
    assert theirs == AUTO_LOSS_MASK_KEYS


def test_a_key_set_to_none_is_the_default_again() -> None:
    loss = ClipPPOLoss(HEADS[0].actor(), critic())
    loss.set_keys(reward="r", done="d")
    loss.set_keys(reward=None)
    assert (loss.tensor_keys.reward, loss.tensor_keys.done) == ("reward", "d")
    assert loss.value_estimator.tensor_keys.reward == "reward"


@needs_multi_agent_gae
@pytest.mark.parametrize("kind", ["MAGAE", "magae"])
def test_the_multi_agent_estimator_takes_its_keywords(kind: Any) -> None:
    loss = ClipPPOLoss(HEADS[0].actor(), critic())
    kind = getattr(ValueEstimators, kind, kind)
    loss.make_value_estimator(kind, gamma=0.9, lmbda=0.8, agent_dim=-2)
    assert float(loss.value_estimator.gamma) == pytest.approx(0.9)
    with pytest.raises(TypeError, match="MultiAgentGAE has no keyword 'lambda_'"):
        loss.make_value_estimator(kind, lambda_=0.8)


@pytest.mark.parametrize("name", ["PPOLoss", "KLPENPPOLoss"])
def test_a_bool_is_no_clip_value_beside_the_clipped_loss(name: str) -> None:
    with pytest.raises(ValueError, match=r"clip_value must be a float or a scalar .* got True"):
        getattr(tdheads, name)(HEADS[0].actor(), critic(), clip_value=True)
