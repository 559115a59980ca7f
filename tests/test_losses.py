"""Every loss: numbers worked out by hand, one ratio or one per leaf, invariances, keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.objectives import SoftUpdate

from tdheads import (
    ClipPPOLoss,
    CompositeHead,
    KLPENPPOLoss,
    NormalHead,
    PolicyLoss,
    PPOLoss,
    SPOLoss,
)
from tests.batches import (
    TERMS,
    check_finite_differences,
    collect,
    gradients,
    move,
    with_garbage,
)
from tests.cases import HEADS, LOSSES, HeadCase, LossCase, case_ids, critic
from tests.hand import NEW_POLICY, constant_actor, constant_critic, three_rows, two_leaves
from tests.versions import needs_scale, needs_value_norm

all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
all_losses = pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
both = pytest.mark.parametrize("aggregate", ["sum", "none"])
HYBRID = HEADS[-1]
KL = math.log(1.25)  # from (1/2, 1/2) to (0.8, 0.2): half the log of 0.5/0.8 times 0.5/0.2


def rows_of_the_old_policy() -> TensorDict:
    td = three_rows()
    td["action_logits"] = torch.zeros(3, 2)
    return td


# ---- worked out by hand. Ratios 1.6, 0.4, 1.6; advantages 1, -2, -1.

HAND = {
    # 1.6, -0.8, -1.6
    "ppo": (PPOLoss, {}, 0.8 / 3),
    # the same, less 3 KL
    "kl-penalty": (KLPENPPOLoss, {"beta": 3.0}, 0.8 / 3 + 3 * KL),
    # penalties |A| / 0.4 times 0.36: 0.9, 1.8, 0.9, so 0.7, -2.6, -2.5
    "spo": (SPOLoss, {"epsilon": 0.2}, 4.4 / 3),
    # two epsilons: min(1.6, 1.3), min(-0.8, 0.9 * -2), min(-1.6, -1.3)
    "clip": (ClipPPOLoss, {"clip_epsilon": (0.1, 0.3)}, (-1.3 + 1.8 + 1.6) / 3),
}


@pytest.mark.parametrize("name", HAND)
def test_the_objective_worked_out_by_hand(name: str) -> None:
    kind, options, expected = HAND[name]
    loss = kind(constant_actor("action", logits=NEW_POLICY), constant_critic(0.5), **options)
    out = loss(rows_of_the_old_policy())
    assert out["loss_objective"].item() == pytest.approx(expected)
    assert out["loss_critic"].item() == pytest.approx(2.25 / 3)
    assert out["mean_ratio"].item() == pytest.approx(1.2)


MASKED = {
    "ppo": 0.0,  # rows 1 and 3: 1.6 and -1.6
    "kl-penalty": 3 * KL,
    "spo": 0.9,  # 0.7 and -2.5
    "clip": 0.15,  # 1.3 and -1.6
}


@pytest.mark.parametrize("name", MASKED)
def test_the_objective_of_valid_rows_worked_out_by_hand(name: str) -> None:
    kind, options, _ = HAND[name]
    td = rows_of_the_old_policy()
    td["collector", "mask"] = torch.tensor([[True], [False], [True]])
    td["action_logits"][1] = torch.nan
    loss = kind(constant_actor("action", logits=NEW_POLICY), None, **options)
    assert loss(td)["loss_objective"].item() == pytest.approx(MASKED[name], abs=1e-6)


# Leaf a has ratio 1.6, leaf b 0.625: jointly 1. KL of a is log 1.25; of b half the log of
# 0.25 / (0.3125 * 0.6875).
KL_B = math.log(0.25 / (0.3125 * 0.6875)) / 2
LEAVES: dict[str, tuple[Callable[..., PolicyLoss], dict[str, Any], float, float, float]] = {
    # kind, keywords, joint objective, that of leaf a, that of leaf b; advantage 1
    "ppo": (PPOLoss, {}, -1, -1.6, -0.625),
    "clip": (ClipPPOLoss, {}, -1, -1.2, -0.625),
    "kl-penalty": (
        KLPENPPOLoss,
        {"beta": 3.0},
        -1 + 3 * (KL + KL_B),
        -1.6 + 3 * KL,
        -0.625 + 3 * KL_B,
    ),
    # 1.6 less 2.5 * 0.36, and 0.625 less 2.5 * 0.375 squared
    "spo": (SPOLoss, {"epsilon": 0.2}, -1, -0.7, -0.2734375),
}


@pytest.mark.parametrize("name", LEAVES)
def test_one_ratio_and_one_per_leaf_worked_out_by_hand(name: str) -> None:
    kind, options, joint, of_a, of_b = LEAVES[name]
    actor, td = two_leaves()
    assert kind(actor, None, **options)(td)["loss_objective"].item() == pytest.approx(joint)
    loss = kind(actor, None, aggregate="none", **options)
    out = loss(td)
    assert out["leaf_objective", "a"].item() == pytest.approx(of_a)
    assert out["leaf_objective", "b"].item() == pytest.approx(of_b)
    assert out["loss_objective"].item() == pytest.approx(of_a + of_b)
    assert set(out.keys(True, True)) == set(loss.out_keys)
    # a padded row of garbage beside it changes nothing
    padded = torch.cat([td, td.apply(lambda x: torch.full_like(x, -7))])
    padded["collector", "mask"] = torch.tensor([[True], [False]])
    loss = kind(actor, None, aggregate="none", **options)
    assert loss(padded)["loss_objective"].item() == pytest.approx(of_a + of_b)
    assert kind(actor, None, **options)(padded)["loss_objective"].item() == pytest.approx(joint)
    if name == "clip":
        assert out["clip_fraction"] == 1  # both leaves are beyond; jointly none is
        assert ClipPPOLoss(actor, None)(td)["clip_fraction"] == 0


def test_an_advantage_per_leaf_worked_out_by_hand() -> None:
    # The lesser of 1.6 and 1.2 for a; of 0.625 * -2 and 0.8 * -2 for b.
    actor, td = two_leaves()
    td["advantage"] = TensorDict({"a": torch.ones(1, 1), "b": torch.full((1, 1), -2.0)}, [1])
    out = ClipPPOLoss(actor, None, aggregate="none")(td)
    assert out["leaf_objective", "a"].item() == pytest.approx(-1.2)
    assert out["leaf_objective", "b"].item() == pytest.approx(1.6)
    with pytest.raises(ValueError, match=r"'advantage'.*tensordict.*aggregate='none'"):
        ClipPPOLoss(actor, None)(td)
    del td["advantage", "b"]
    with pytest.raises(KeyError, match=r"\('advantage', 'b'\).*one advantage for each leaf"):
        ClipPPOLoss(actor, None, aggregate="none")(td)


@all_losses
@all_heads
def test_at_ratio_1_both_aggregations_have_the_same_gradient(
    case: HeadCase, kind: LossCase
) -> None:
    """With unchanged weights d/dw of any of the surrogates is A, whichever way it is summed."""
    dtype = torch.float64
    actor = case.actor(dtype)
    td = collect(case, actor, [11], dtype)
    grads = []
    for aggregate in ("sum", "none"):
        loss = kind.build(actor, None, aggregate=aggregate, entropy_bonus=False)
        out, grad = gradients(loss, td)
        assert out["max_ratio"] == 1
        grads.append(grad)
    assert sum(grad.abs().sum() for grad in grads[0].values()) > 0.1
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, rtol=1e-9, atol=1e-12)


# ---- laws of all losses


@all_losses
@all_heads
@both
def test_keys_written_are_the_keys_declared(case: HeadCase, kind: LossCase, aggregate: str) -> None:
    td = collect(case, actor := case.actor(), [5])
    loss = kind.build(actor, critic(), aggregate=aggregate, clip_value=0.2)
    assert set(loss(td).keys(True, True)) == set(loss.out_keys)
    assert set(loss.in_keys) >= set(actor.in_keys)
    if loss.needs_kl:
        assert set(loss.in_keys) >= set(actor[-1].stored_keys)


NAMES = ("multi", "bits", "beta", "conditional", "tree", "hybrid")
FEW = [case for case in HEADS if case.name in NAMES]


@all_losses
@pytest.mark.parametrize("case", FEW, ids=case_ids(FEW))
@both
def test_finite_differences_of_every_term(case: HeadCase, kind: LossCase, aggregate: str) -> None:
    dtype = torch.float64
    actor, value = case.actor(dtype), critic(dtype)
    td = collect(case, actor, [5], dtype)
    move(actor, 0.03)
    loss = kind.build(actor, value, aggregate=aggregate, normalize_advantage=True)
    check_finite_differences(loss, td, TERMS)


@all_losses
@all_heads
@pytest.mark.parametrize(
    ("garbage", "aggregate"), [(math.nan, "sum"), (1e9, "none"), (-math.inf, "none")]
)
def test_garbage_in_padded_rows_changes_nothing(
    case: HeadCase, kind: LossCase, garbage: float, aggregate: str
) -> None:
    dtype = torch.float64
    actor, value = case.actor(dtype), critic(dtype)
    td = collect(case, actor, [7], dtype)
    move(actor)
    loss = kind.build(actor, value, aggregate=aggregate, normalize_advantage=True)
    expected, expected_grad = gradients(loss, td[[1, 2, 4, 5]])
    found, found_grad = gradients(loss, with_garbage(td, [0, 3, 6], garbage))
    for key, figure in expected.items(True, True):
        torch.testing.assert_close(found[key], figure, rtol=1e-9, atol=1e-12)
    for name, grad in expected_grad.items():
        torch.testing.assert_close(found_grad[name], grad, rtol=1e-9, atol=1e-12)


@all_losses
@both
def test_permuting_rows_changes_nothing(kind: LossCase, aggregate: str) -> None:
    dtype = torch.float64
    td = collect(HYBRID, actor := HYBRID.actor(dtype), [7], dtype)
    move(actor)
    loss = kind.build(actor, critic(dtype), aggregate=aggregate, normalize_advantage=True)
    expected = loss(td)
    found = loss(td[torch.randperm(7)])
    for key, figure in expected.items(True, True):
        torch.testing.assert_close(found[key], figure, rtol=1e-9, atol=1e-12)


@all_losses
@both
def test_permuting_leaves_changes_nothing(kind: LossCase, aggregate: str) -> None:
    td = collect(HYBRID, actor := HYBRID.actor(torch.float64), [7], torch.float64)
    move(actor)
    loss = kind.build(actor, critic(torch.float64), aggregate=aggregate, normalize_advantage=True)
    other = CompositeHead(*reversed(actor[-1].leaves))
    swapped = ProbabilisticTensorDictSequential(actor[0], actor[1], other)
    reordered = kind.build(
        swapped, loss.critic_network, aggregate=aggregate, normalize_advantage=True
    )(td)
    for key, figure in loss(td).items(True, True):
        torch.testing.assert_close(reordered[key], figure)


@all_losses
def test_splitting_a_leaf_into_independent_ones_changes_no_joint_figure(kind: LossCase) -> None:
    whole = CompositeHead(NormalHead("x", (3,)))
    parts = CompositeHead(NormalHead("y", (1,)), NormalHead("z", (2,)))
    torch.manual_seed(0)
    td = TensorDict({"observation": torch.zeros(5, 6, dtype=torch.float64)}, [5])
    raw = nn.Linear(6, 6).double()

    class Pick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.raw = raw

        def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
            loc, scale = self.raw(obs).chunk(2, -1)
            return loc, scale, loc[..., :1], scale[..., :1], loc[..., 1:], scale[..., 1:]

    names = ["x_loc", "x_scale", "y_loc", "y_scale", "z_loc", "z_scale"]
    net = TensorDictModule(Pick(), ["observation"], names)
    td["x"] = torch.randn(5, 3, dtype=torch.float64)
    td["y"], td["z"] = td["x"][:, :1], td["x"][:, 1:]
    td["x_log_prob"] = torch.randn(5, dtype=torch.float64) - 4
    td["y_log_prob"] = torch.randn(5, dtype=torch.float64)
    td["z_log_prob"] = td["x_log_prob"] - td["y_log_prob"]
    # what was stored at collection: another policy, split in the same way
    td["x_loc"] = torch.randn(5, 3, dtype=torch.float64)
    td["x_scale"] = torch.rand(5, 3, dtype=torch.float64) + 0.5
    for name in ("loc", "scale"):
        td[f"y_{name}"], td[f"z_{name}"] = td[f"x_{name}"].split([1, 2], -1)
    td["advantage"] = td["value_target"] = torch.randn(5, 1, dtype=torch.float64)
    value = TensorDictModule(nn.Linear(6, 1).double(), ["observation"], ["state_value"])
    one, two = (
        kind.build(ProbabilisticTensorDictSequential(net, head), value) for head in (whole, parts)
    )
    figures, split = one(td), two(td)
    own = [name for name in ("clip_fraction", "kl") if name in figures.keys()]
    for name in (*TERMS, *own, "kl_approx", "entropy", "ESS", "max_ratio"):
        torch.testing.assert_close(figures[name], split[name])
    assert "kl" not in own or figures["kl"] > 0.1


@all_losses
@pytest.mark.parametrize("functional", [True, False])
def test_only_the_right_networks_get_a_gradient(kind: LossCase, functional: bool) -> None:
    td = collect(HYBRID, actor := HYBRID.actor(), [7])
    value = critic()
    out = kind.build(actor, value, functional=functional)(td)
    out["loss_objective"].backward(retain_graph=True)
    assert all(p.grad is None or not p.grad.any() for p in value.parameters())
    assert all(p.grad is not None and p.grad.any() for p in actor.parameters())
    actor.zero_grad()
    out["loss_critic"].backward()
    assert all(p.grad is None or not p.grad.any() for p in actor.parameters())
    assert all(p.grad is not None for p in value.parameters())


@all_losses
def test_state_dict_round_trip(kind: LossCase) -> None:
    td = collect(HYBRID, actor := HYBRID.actor(), [7])
    loss, other = (kind.build(a, critic()) for a in (actor, HYBRID.actor()))
    assert not torch.equal(loss(td)["loss_objective"], other(td)["loss_objective"])
    other.load_state_dict(loss.state_dict())
    for key, figure in loss(td).items(True, True):
        torch.testing.assert_close(other(td)[key], figure)


@both
def test_capped_ratios_are_capped_for_each_leaf_or_jointly(aggregate: str) -> None:
    actor, td = two_leaves()
    loss = PPOLoss(actor, None, aggregate=aggregate, max_importance_ratio=1.1)
    out = loss(td)
    # jointly the ratio is 1; of the leaves, 1.6 is capped to 1.1 and 0.625 is not
    assert out["loss_objective"].item() == pytest.approx(-1 if aggregate == "sum" else -1.725)


# ---- schedules and options that the losses share


def test_entropy_coefficients_are_scheduled_leaf_by_leaf() -> None:
    actor = HYBRID.actor()
    leaves = actor.dist_sample_keys
    loss = ClipPPOLoss(
        actor, None, entropy_coeff=dict(zip(leaves, [0.1, 0.2, 0.3, 0.4], strict=True))
    )
    loss.entropy_coeff = {"where": 0.0, ("arm", "force_log_prob"): 0.7}
    assert loss.entropy_coeff.tolist() == pytest.approx([0.1, 0.7, 0.0, 0.4])
    with pytest.raises(ValueError, match=r"entropy_coeff: expected one coefficient for each"):
        loss.entropy_coeff = {"wher": 0.0}
    with pytest.raises(
        ValueError, match=r"one coefficient for all leaves; build it with a mapping"
    ):
        ClipPPOLoss(actor, None).entropy_coeff = {"where": 0.0}


@needs_value_norm
@pytest.mark.parametrize("name", ["PopArtValueNorm", "RunningValueNorm"])
def test_value_norm_gives_the_critic_loss_of_torchrls_mappo(name: str) -> None:
    import torchrl.modules
    from torchrl.objectives.multiagent import MAPPOLoss

    dtype = torch.float64
    td = collect(HYBRID, actor := HYBRID.actor(dtype), [11], dtype)
    td["value_target"] *= 100
    value = critic(dtype)
    norms = [getattr(torchrl.modules, name)(shape=1) for _ in range(2)]
    ours = ClipPPOLoss(actor, value, value_norm=norms[0])
    theirs = MAPPOLoss(actor, value, value_norm=norms[1], normalize_advantage=False)
    for _ in range(2):  # the second time with statistics that moved
        a, b = ours(td)["loss_critic"], theirs(td)["loss_critic"]
        torch.testing.assert_close(a, b.to(a.dtype), rtol=1e-6, atol=1e-9)
    before = {k: v.clone() for k, v in norms[0].state_dict().items()}
    ours.eval()
    ours(td)
    with torch.no_grad():
        ours.train()(td)
    assert all(torch.equal(v, before[k]) for k, v in norms[0].state_dict().items())


@needs_value_norm
def test_value_norm_does_not_see_padded_rows() -> None:
    from torchrl.modules import RunningValueNorm

    td = collect(HYBRID, actor := HYBRID.actor(torch.float64), [7], torch.float64)
    results = []
    for batch in (td[[1, 2, 4, 5]], with_garbage(td, [0, 3, 6], math.nan)):
        norm = RunningValueNorm(shape=1)
        loss = ClipPPOLoss(actor, critic(torch.float64), value_norm=norm)
        torch.manual_seed(0)
        for param in loss.critic_network_params.values(True, True):
            param.data.normal_()
        results.append(loss(batch)["loss_critic"])
    torch.testing.assert_close(results[0], results[1])


@needs_scale
def test_estimate_does_what_the_forward_does_by_itself() -> None:
    from torchrl.modules import PopArtValueNorm

    case = HEADS[0]
    td = collect(case, actor := case.actor(), [7, 3])
    td = td.exclude("advantage", "value_target", "state_value")
    td["next"] = td.select("observation").update({"reward": torch.randn(7, 3, 1)})
    td["next", "done"] = torch.rand(7, 3, 1) < 0.3
    td["collector", "mask"] = torch.rand(7, 3, 1) < 0.7
    value = critic()
    alone, two_steps = (ClipPPOLoss(actor, value, advantage_norm=PopArtValueNorm()) for _ in "ab")
    batch = two_steps.estimate(td.clone())
    for key, figure in alone(td).items(True, True):
        torch.testing.assert_close(two_steps(batch)[key], figure)
    assert alone.advantage_norm.debiasing_term != 0
    for name, buffer in alone.advantage_norm.named_buffers():
        torch.testing.assert_close(dict(two_steps.advantage_norm.named_buffers())[name], buffer)
    two_steps.eval().estimate(td.clone())
    for name, buffer in alone.advantage_norm.named_buffers():
        torch.testing.assert_close(dict(two_steps.advantage_norm.named_buffers())[name], buffer)


@needs_value_norm
@pytest.mark.parametrize("name", ["value_norm", pytest.param("advantage_norm", marks=needs_scale)])
def test_a_batch_without_a_valid_row_moves_no_statistics(name: str) -> None:
    from torchrl.modules import PopArtValueNorm

    case = HEADS[0]
    td = collect(case, actor := case.actor(), [7])
    td["next"] = td.select("observation").update({"reward": torch.ones(7, 1)})
    td["next", "done"] = torch.zeros(7, 1, dtype=torch.bool)
    td["collector", "mask"] = torch.zeros(7, 1, dtype=torch.bool)
    norm = PopArtValueNorm()
    loss = ClipPPOLoss(actor, critic(), **{name: norm})
    if name == "advantage_norm":  # which moves when the loss computes the advantage
        td = td.exclude("advantage", "value_target", "state_value")
    loss(td)
    assert all((buffer == 0).all() for buffer in norm.buffers())
    td["collector", "mask"][:3] = True
    loss(td)
    assert all((buffer != 0).all() and buffer.isfinite().all() for buffer in norm.buffers())


# ---- the KL penalty


@all_heads
def test_the_kl_is_that_from_the_stored_to_the_current_policy(case: HeadCase) -> None:
    """Estimated by a difference of log-probs over many draws where it is not a table."""
    dtype = torch.float64
    actor = case.actor(dtype)
    td = collect(case, actor, [5], dtype)
    loss = KLPENPPOLoss(actor, None, entropy_bonus=False)
    assert loss(td)["kl"].item() == pytest.approx(0, abs=1e-12)
    old = actor.get_dist(td.clone())
    move(actor, 0.3)
    found = loss(td)["kl"]
    new = actor.get_dist(td.clone())
    expected = torch.distributions.kl_divergence(old, new)
    if any(leaf.dependence.after for leaf in actor[-1].leaves):
        assert found > 0  # at the stored actions, an estimate
        return
    torch.testing.assert_close(found, expected.mean())


def test_the_kl_of_a_masked_leaf_by_enumeration() -> None:
    case = next(case for case in HEADS if case.name == "masked")
    dtype = torch.float64
    td = collect(case, actor := case.actor(dtype), [5], dtype)
    old = td["action_logits"].masked_fill(~td["action_mask"], -torch.inf).log_softmax(-1)
    move(actor, 0.3)
    found = KLPENPPOLoss(actor, None)(td.clone())["kl"]
    new = actor(td.clone())["action_logits"]
    new = new.masked_fill(~td["action_mask"], -torch.inf).log_softmax(-1)
    expected = (old.exp() * (old - new)).nansum(-1).mean()
    torch.testing.assert_close(found, expected)


def kl_loss(**options: Any) -> tuple[KLPENPPOLoss, TensorDict]:
    actor = constant_actor("action", logits=NEW_POLICY)
    return KLPENPPOLoss(actor, None, entropy_bonus=False, **options), rows_of_the_old_policy()


def test_beta_takes_part_as_it_is_and_moves_afterwards() -> None:
    grads = []
    for adapt in (True, False):
        loss, td = kl_loss(beta=3.0, adapt_beta=adapt)
        loss(td)["loss_objective"].backward()
        assert loss.beta == (6.0 if adapt else 3.0)  # the KL, 0.22, is far above 0.01
        grads.append(next(loss.parameters()).grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0)
    loss.update_beta(torch.tensor(0.001))
    assert loss.beta == 1.5
    loss.update_beta(torch.tensor(0.01))
    loss.update_beta(torch.tensor(math.nan))
    assert loss.beta == 1.5
    loss.reset()
    assert loss.beta == 3.0
    loss.beta = 0.25
    assert loss.beta == 0.25
    assert "beta" in loss.state_dict()


def test_beta_stays_in_evaluation_without_gradients_and_without_valid_rows() -> None:
    loss, td = kl_loss()
    loss.eval()
    loss(td)
    loss.train()
    with torch.no_grad():
        loss(td)
    td["collector", "mask"] = torch.zeros(3, 1, dtype=torch.bool)
    loss(td)
    assert loss.beta == 1.0
    del td["collector"]
    loss(td)
    assert loss.beta == 2.0


def test_parameters_that_were_not_stored_are_named() -> None:
    loss, td = kl_loss()
    with pytest.raises(KeyError, match=r"'action_logits'.*policy at collection: store"):
        loss(td.exclude("action_logits"))


def test_the_target_policy_is_where_the_kl_starts_with_delay_actor() -> None:
    dtype = torch.float64
    td = collect(HYBRID, actor := HYBRID.actor(dtype), [7], dtype)
    loss = KLPENPPOLoss(actor, None, delay_actor=True, adapt_beta=False)
    SoftUpdate(loss, eps=0.9)
    old = actor.get_dist(td.clone())
    move(actor, 0.3)
    stale = td.exclude("kind_logits")  # what was stored plays no part
    expected = torch.distributions.kl_divergence(old, actor.get_dist(td.clone())).mean()
    torch.testing.assert_close(loss(stale)["kl"], expected)


@pytest.mark.parametrize(("kind", "exact"), [("TanhNormal", True), ("Kumaraswamy", False)])
def test_foreign_leaves_with_and_without_a_closed_form(kind: str, exact: bool) -> None:
    import torchrl.modules
    from torchrl.modules import ProbabilisticActor

    names = ["loc", "scale"] if exact else ["concentration1", "concentration0"]
    cls = torchrl.modules.TanhNormal if exact else torch.distributions.Kumaraswamy

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            a, b = self.linear(x).chunk(2, -1)
            return (a, b.exp()) if exact else (a.exp(), b.exp())

    net = Net().double()
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], names), names, distribution_class=cls,
        return_log_prob=True, default_interaction_type="random",
    )  # fmt: skip
    td = actor(TensorDict({"observation": torch.randn(5, 3).double()}, [5])).detach()
    td["advantage"] = torch.randn(5, 1).double()
    loss = KLPENPPOLoss(actor, None, samples_mc_kl=20_000, adapt_beta=False, entropy_bonus=False)
    assert loss(td)["kl"].abs() < 1e-6
    net.linear.weight.data += 0.1
    found = loss(td)["kl"]
    draws = torch.distributions.TransformedDistribution if exact else cls
    assert issubclass(cls, draws)
    with torch.no_grad():
        stored = actor.build_dist_from_params(td.clone())
        current = actor.get_dist(td.clone())
        x = stored.sample((200_000,)).clamp(1e-6 - exact, 1 - 1e-6)
        expected = (stored.log_prob(x) - current.log_prob(x)).reshape(200_000, 5, -1).sum(-1)
    assert found.item() == pytest.approx(expected.mean().item(), rel=0.05)
    net.zero_grad()
    loss(td)["loss_objective"].backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


BAD = {
    "dtarg": ({"dtarg": 0.0}, "dtarg: .* > 0"),
    "beta": ({"beta": -1.0}, "beta: .* >= 0, got -1.0"),
    "increment": ({"increment": 0.5}, "increment: .* >= 1, got 0.5"),
    "decrement": ({"decrement": 2.0}, "decrement: .* at most 1, got 2.0"),
    "aggregate": ({"aggregate": "mean"}, "aggregate: expected one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_in_the_constructor(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        kl_loss(**options)
    with pytest.raises(ValueError, match="epsilon: expected a number > 0, got 0"):
        SPOLoss(constant_actor("action", logits=NEW_POLICY), None, epsilon=0)
