"""ClipPPOLoss: numbers worked out by hand, invariances, keys, and what users do wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import GAE

from tdheads import CategoricalHead, ClipPPOLoss
from tests.batches import (
    TERMS,
    check_finite_differences,
    collect,
    gradients,
    move,
    with_garbage,
)
from tests.cases import FEATURES, HEADS, HeadCase, case_ids, critic
from tests.hand import NEW_POLICY, Constant, constant_actor, constant_critic, three_rows, two_leaves

all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
HYBRID = HEADS[-1]


def test_every_figure_worked_out_by_hand() -> None:
    # Ratios: 0.8/0.5 = 1.6, 0.2/0.5 = 0.4, 1.6. Clip to [0.8, 1.2].
    # Row 1: min(1.6 * 1, 1.2 * 1) = 1.2; row 2: min(0.4 * -2, 0.8 * -2) = -1.6;
    # row 3: min(1.6 * -1, 1.2 * -1) = -1.6. Mean -2/3, loss 2/3.
    loss = ClipPPOLoss(constant_actor("action", logits=NEW_POLICY), constant_critic(0.5))
    out = loss(three_rows())
    assert out["loss_objective"].item() == pytest.approx(2 / 3)
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    assert out["entropy"].item() == pytest.approx(entropy)
    assert out["loss_entropy"].item() == pytest.approx(-0.01 * entropy)
    # Value 0.5, targets 1, 3, 0: smooth l1 of 0.5, 2.5, 0.5 is 0.125, 2, 0.125.
    assert out["loss_critic"].item() == pytest.approx(2.25 / 3)
    assert out["clip_fraction"] == 1
    assert out["kl_approx"].item() == pytest.approx(
        (2 * math.log(0.5 / 0.8) + math.log(0.5 / 0.2)) / 3
    )
    # The square of the sum of ratios, 3.6, by three times the sum of their squares, 5.28.
    assert out["ESS"].item() == pytest.approx(12.96 / 15.84)
    assert out["max_ratio"].item() == pytest.approx(1.6)
    assert out["mean_ratio"].item() == pytest.approx(1.2)
    assert out["ratio_clamped"] == 0
    # A constant value explains nothing of the target.
    assert out["explained_variance"].item() == pytest.approx(0, abs=1e-6)


def test_the_gradient_worked_out_by_hand() -> None:
    # Rows 1 and 2 are clipped against the move: no gradient. Row 3 is unclipped: d(w A)/dz with
    # w = 1.6, A = -1 and dlog p_0/dz = (1 - 0.8, -0.2); loss is minus a third of it.
    actor = constant_actor("action", logits=NEW_POLICY)
    loss = ClipPPOLoss(actor, constant_critic(0.5), entropy_bonus=False)
    loss(three_rows())["loss_objective"].backward()
    grad = next(loss.actor_network_params.values(True, True)).grad
    assert grad is not None
    assert grad.tolist() == pytest.approx([1.6 * 0.2 / 3, -1.6 * 0.2 / 3])


def test_a_validity_mask_worked_out_by_hand() -> None:
    # Rows 1 and 3 count: (1.2 - 1.6) / 2 = -0.2.
    td = three_rows()
    td["collector", "mask"] = torch.tensor([[True], [False], [True]])
    out = ClipPPOLoss(constant_actor("action", logits=NEW_POLICY), constant_critic(0.5))(td)
    assert out["loss_objective"].item() == pytest.approx(0.2)
    assert out["loss_critic"].item() == pytest.approx(0.125)
    assert out["kl_approx"].item() == pytest.approx(math.log(0.5 / 0.8))
    assert out["mean_ratio"].item() == pytest.approx(1.6)
    assert out["ESS"].item() == pytest.approx(1)


def test_the_joint_ratio_is_clipped_not_each_leaf() -> None:
    # Leaf a moves from 1/2 to 0.8 (ratio 1.6), leaf b from 1/2 to 0.3125 (ratio 0.625): the joint
    # ratio is 1 and nothing is clipped. Clipping each leaf would give 1.2 * 0.8 = 0.96.
    actor, td = two_leaves()
    loss = ClipPPOLoss(actor, constant_critic(0.0))
    out = loss(td)
    assert out["loss_objective"].item() == pytest.approx(-1)
    assert out["clip_fraction"] == 0
    assert out["leaf_kl_approx", "a"].item() == pytest.approx(-math.log(1.6))
    assert out["leaf_kl_approx", "b"].item() == pytest.approx(-math.log(0.625))


def test_huge_log_ratios_are_clamped_and_counted() -> None:
    td = three_rows()
    td["action_log_prob"] = torch.tensor([-500.0, math.log(0.5), math.log(0.5)])
    td["advantage"] = -torch.ones(3, 1)
    loss = ClipPPOLoss(constant_actor("action", logits=(0.0, 0.0)), constant_critic(0.0))
    out = loss(td)
    assert out["ratio_clamped"] == 1
    assert out["max_ratio"].item() == pytest.approx(math.exp(20))
    assert out["loss_objective"].isfinite()


@all_heads
def test_finite_differences_of_every_term(case: HeadCase) -> None:
    dtype = torch.float64
    actor, value = case.actor(dtype), critic(dtype)
    td = collect(case, actor, [5], dtype)
    move(actor, 0.03)
    loss = ClipPPOLoss(actor, value, clip_value=0.3)
    check_finite_differences(loss, td, TERMS)


# ---- rows that do not count


@all_heads
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_garbage_in_padded_rows_changes_no_clipped_value(case: HeadCase, garbage: float) -> None:
    """The other kinds of garbage, with a normalised advantage and for every loss: test_losses."""
    dtype = torch.float64
    actor, value = case.actor(dtype), critic(dtype)
    td = collect(case, actor, [7], dtype)
    move(actor)
    rows = [0, 3, 6]
    kept = td[[1, 2, 4, 5]]
    loss = ClipPPOLoss(actor, value, clip_value=0.3)
    expected, expected_grad = gradients(loss, kept)
    found, found_grad = gradients(loss, with_garbage(td, rows, garbage))
    for key, figure in expected.items(True, True):
        torch.testing.assert_close(found[key], figure, rtol=1e-9, atol=1e-12)
    for name, grad in expected_grad.items():
        torch.testing.assert_close(found_grad[name], grad, rtol=1e-9, atol=1e-12)


@all_heads
def test_padding_with_two_batch_dims_and_a_named_mask(case: HeadCase) -> None:
    actor, value = case.actor(), critic()
    td = collect(case, actor, [3, 5])
    move(actor)
    valid = torch.rand(3, 5) < 0.6
    valid[0, 0] = True
    td["valid"] = valid
    loss = ClipPPOLoss(actor, value, normalize_advantage=True)
    expected, expected_grad = gradients(loss, td[valid].exclude("valid"))
    loss.loss_mask_key = "valid"
    found, found_grad = gradients(loss, td)
    for key, figure in expected.items(True, True):
        torch.testing.assert_close(found[key], figure, rtol=1e-4, atol=1e-6)
    for name, grad in expected_grad.items():
        torch.testing.assert_close(found_grad[name], grad, rtol=1e-4, atol=1e-6)
    loss.loss_mask_key = None
    assert (loss(td)["loss_objective"] - found["loss_objective"]).abs() > 1e-6


def test_reduction_none_keeps_the_shape_and_zeroes_padding() -> None:
    td = collect(HYBRID, actor := HYBRID.actor(), [7])
    td = with_garbage(td, [2], math.nan)
    out = ClipPPOLoss(actor, critic(), reduction="none")(td)
    for term in TERMS:
        assert out[term].shape == torch.Size([7])
        assert out[term][2] == 0


def test_rows_with_nothing_to_choose_leave_the_policy_terms_but_not_the_critics() -> None:
    head = CategoricalHead("action", 2, mask=True, on_empty="neutral")
    net = TensorDictModule(Constant(*NEW_POLICY), ["observation"], ["action_logits"])
    actor = ProbabilisticTensorDictSequential(net, head)
    td = three_rows()
    td["action_mask"] = torch.tensor([[True, True], [False, False], [True, True]])
    td["action"][1], td["action_log_prob"][1] = 0, 0.0
    td["advantage"][1] = 1e6
    out = ClipPPOLoss(actor, constant_critic(0.5))(td)
    assert out["loss_objective"].item() == pytest.approx(0.2)  # as with a validity mask
    assert out["loss_critic"].item() == pytest.approx(2.25 / 3)  # all three rows
    assert out["entropy"].item() == pytest.approx(0.500402, abs=1e-5)


# ---- agents


def agent_batch() -> tuple[nn.Module, nn.Module, TensorDict]:
    net = nn.Linear(FEATURES, 5)
    backbone = TensorDictModule(net, [("agents", "obs")], [("agents", "action_logits")])
    actor = ProbabilisticTensorDictSequential(backbone, CategoricalHead(("agents", "action"), 5))
    value = TensorDictModule(nn.Linear(FEATURES, 1), ["state"], ["state_value"])
    td = TensorDict(
        {"state": torch.randn(7, FEATURES), ("agents", "obs"): torch.randn(7, 3, FEATURES)}, [7]
    )
    td = actor(td).detach()
    td["advantage"], td["value_target"] = torch.randn(7, 1), torch.randn(7, 1)
    move(actor)
    return actor, value, td


def test_a_team_advantage_is_broadcast_over_per_agent_ratios() -> None:
    actor, value, td = agent_batch()
    loss = ClipPPOLoss(actor, value)
    out = loss(td)
    log_ratio = (
        actor.get_dist(td).log_prob(td["agents", "action"]) - td["agents", "action_log_prob"]
    )
    ratio, advantage = log_ratio.exp(), td["advantage"]
    expected = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    torch.testing.assert_close(out["loss_objective"], expected)
    td["advantage"] = td["advantage"].unsqueeze(1).expand(7, 3, 1)
    torch.testing.assert_close(loss(td)["loss_objective"], expected)


def test_a_dead_agents_row_reaches_no_parameter() -> None:
    actor, value, td = agent_batch()
    alive = torch.rand(7, 3) < 0.7
    alive[0] = True
    td["agents", "alive"] = alive
    loss = ClipPPOLoss(actor, value, normalize_advantage=True)
    loss.loss_mask_key = ("agents", "alive")
    expected, expected_grad = gradients(loss, td)
    td["agents", "obs"][~alive] = math.nan
    td["agents", "action_log_prob"][~alive] = math.nan
    found, found_grad = gradients(loss, td)
    for key, figure in expected.items(True, True):
        assert (found[key] == figure).all()
    for name, grad in expected_grad.items():
        assert (found_grad[name] == grad).all()


# ---- normalisation


def test_normalisation_uses_valid_rows_only_and_never_gives_nan() -> None:
    td = three_rows()
    td["collector", "mask"] = torch.tensor([[True], [False], [False]])
    loss = ClipPPOLoss(
        constant_actor("action", logits=NEW_POLICY), constant_critic(0.5), normalize_advantage=True
    )
    assert loss(td)["loss_objective"].item() == pytest.approx(-1.2)  # one row: left as it is
    td["collector", "mask"] = torch.zeros(3, 1, dtype=torch.bool)
    assert loss(td)["loss_objective"] == 0


def test_normalisation_keeps_the_dims_apart_that_the_user_names() -> None:
    advantage = torch.randn(5, 3, 1) * torch.tensor([1.0, 10.0, 100.0]).view(3, 1)
    from tdheads.losses.functional import standardize

    apart = standardize(advantage.squeeze(-1), None, [1])
    torch.testing.assert_close(apart.std(0), torch.ones(3))
    together = standardize(advantage.squeeze(-1))
    assert together.std().item() == pytest.approx(1, abs=1e-5)


# ---- entropy coefficients


def test_entropy_coefficients_per_leaf() -> None:
    td = collect(HYBRID, actor := HYBRID.actor(), [7])
    keys = actor.dist_sample_keys
    forms: list[Any] = [keys[0], ("arm", "force_log_prob"), "where_entropy", keys[3]]
    values = [0.1, 0.0, 0.3, 0.4]
    loss = ClipPPOLoss(actor, critic(), entropy_coeff=dict(zip(forms, values, strict=True)))
    out = loss(td)
    names = ["kind_entropy", ("arm", "force_entropy"), "where_entropy", "items_entropy"]
    leaves = [out.get(("composite_entropy", *([n] if isinstance(n, str) else n))) for n in names]
    expected = -sum(c * h for c, h in zip(values, leaves, strict=True))
    torch.testing.assert_close(out["loss_entropy"], expected)
    torch.testing.assert_close(out["entropy"], sum(leaves))


def test_entropy_coefficients_are_saved_and_can_be_scheduled() -> None:
    actor = HYBRID.actor()
    coeff = dict(zip(actor.dist_sample_keys, [0.1, 0.2, 0.3, 0.4], strict=True))
    loss = ClipPPOLoss(actor, critic(), entropy_coeff=coeff)
    other = ClipPPOLoss(HYBRID.actor(), critic(), entropy_coeff=dict.fromkeys(coeff, 0.0))
    other.load_state_dict(loss.state_dict())
    assert other.entropy_coeff.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    loss.entropy_coeff = 0.5
    assert loss.entropy_coeff.tolist() == [0.5] * 4


def test_a_zero_coefficient_drops_a_term_that_is_not_finite() -> None:
    class Unbounded(torch.distributions.Normal):
        def entropy(self) -> Tensor:
            return super().entropy() * torch.inf

    net = TensorDictModule(nn.Linear(FEATURES, 1), ["observation"], ["loc"])
    actor = ProbabilisticActor(
        net, ["loc"], distribution_class=Unbounded, distribution_kwargs={"scale": 1.0},
        return_log_prob=True,
    )  # fmt: skip
    td = TensorDict({"observation": torch.zeros(3, FEATURES)}, [3])
    td["action"] = torch.zeros(3, 1)
    td["action_log_prob"] = torch.zeros(3)
    td["advantage"] = td["value_target"] = torch.zeros(3, 1)
    assert ClipPPOLoss(actor, critic(), entropy_coeff=0.0)(td)["loss_entropy"] == 0
    assert ClipPPOLoss(actor, critic())(td)["loss_entropy"] == -torch.inf


# ---- keys, estimators, state


@all_heads
@pytest.mark.parametrize("options", [{}, {"entropy_bonus": False}, {"clip_value": 0.1}], ids=str)
def test_keys_written_are_the_keys_declared(case: HeadCase, options: dict[str, Any]) -> None:
    td = collect(case, actor := case.actor(), [5])
    loss = ClipPPOLoss(actor, critic(), **options)
    assert set(loss(td).keys(True, True)) == set(loss.out_keys)
    alone = ClipPPOLoss(actor, None)
    assert set(alone(td).keys(True, True)) == set(alone.out_keys)


def rollout(case: HeadCase, actor: nn.Module) -> TensorDict:
    td = collect(case, actor, [3, 5]).exclude("advantage", "value_target", "state_value")
    td["next"] = case.inputs([3, 5], seed=4)
    td["next", "reward"] = torch.randn(3, 5, 1)
    td["next", "done"] = td["next", "terminated"] = torch.rand(3, 5, 1) < 0.2
    return td


@pytest.mark.parametrize("functional", [True, False])
def test_a_missing_advantage_is_computed_as_gae_does_it(functional: bool) -> None:
    actor, value = HYBRID.actor(), critic()
    td = rollout(HYBRID, actor)
    loss = ClipPPOLoss(actor, value, functional=functional)
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.8)
    with torch.no_grad():
        outside = GAE(gamma=0.9, lmbda=0.8, value_network=value)(td.clone())
    inside = loss(td)
    expected = loss(outside)
    for term in TERMS:
        torch.testing.assert_close(inside[term], expected[term])
    assert "advantage" not in td.keys()


def test_every_value_estimator_of_torchrl_runs() -> None:
    actor, value = HYBRID.actor(), critic()
    td = rollout(HYBRID, actor)
    for kind in ("TD0", "TD1", "TDLambda", "GAE"):
        loss = ClipPPOLoss(actor, value)
        assert loss.make_value_estimator(ValueEstimators[kind]) is loss
        assert loss(td)["loss_objective"].isfinite()


def test_keyword_arguments_instead_of_a_tensordict() -> None:
    case = HEADS[1]
    td = collect(case, actor := case.actor(), [5])
    loss = ClipPPOLoss(actor, critic())
    td["next"] = case.inputs([5], seed=2)
    td["next", "reward"] = torch.randn(5, 1)
    td["next", "done"] = td["next", "terminated"] = torch.zeros(5, 1, dtype=torch.bool)
    td = td.exclude("advantage", "value_target", "state_value", "action_logits", "hidden")
    flat = td.flatten_keys("_")
    expected = loss(td)
    outs = loss(**dict(flat.items()))
    for key, out in zip(loss.out_keys, outs, strict=True):
        torch.testing.assert_close(out, expected[key])
    loss.select_out_keys("loss_objective")
    torch.testing.assert_close(loss(**dict(flat.items())), expected["loss_objective"])


def test_set_keys_reaches_every_entry() -> None:
    case = HEADS[1]
    td = collect(case, actor := case.actor(), [5])
    value, named = critic(), ("critic", "v")
    expected = ClipPPOLoss(actor, value, clip_value=0.1)(td)
    loss = ClipPPOLoss(
        actor, TensorDictModule(value.module, ["observation"], [named]), clip_value=0.1
    )
    names: dict[str, Any] = {
        "advantage": "adv",
        "value_target": ("t", "r"),
        "value": named,
        "sample_log_prob": "old",
        "action": "act",
    }
    loss.set_keys(**names)
    stored = dict(names, state_value=named, action_log_prob="old")
    for old, new in stored.items():
        if old in td.keys():
            td.rename_key_(old, new)
    found = loss(td)
    for term in TERMS:
        torch.testing.assert_close(found[term], expected[term])
    assert ("leaf_kl_approx", "act") in loss.out_keys


def test_a_composites_leaves_are_where_its_heads_write_them() -> None:
    td = collect(HYBRID, actor := HYBRID.actor(), [5])
    loss = ClipPPOLoss(actor, critic())
    loss.set_keys(action=["kind", "where"], sample_log_prob=["kind_log_prob", "where_log_prob"])
    with pytest.raises(ValueError, match=r"the leaves \['kind', .*got \['kind', 'where'\]"):
        loss(td)


def test_state_dict_round_trip() -> None:
    td = collect(HYBRID, actor := HYBRID.actor(), [5])
    loss = ClipPPOLoss(actor, critic(), clip_epsilon=0.3)
    other = ClipPPOLoss(HYBRID.actor(), critic(), clip_epsilon=0.1)
    assert (other(td)["loss_objective"] - loss(td)["loss_objective"]).abs() > 1e-6
    other.load_state_dict(loss.state_dict())
    for key, figure in loss(td).items(True, True):
        assert (other(td)[key] == figure).all()


def test_epsilon_can_be_scheduled_under_the_name_that_is_in_use() -> None:
    actor = HEADS[0].actor()
    loss = ClipPPOLoss(actor, critic())
    loss.clip_epsilon = 0.05
    assert loss.clip_epsilon.item() == pytest.approx(0.05)
    with pytest.raises(AttributeError, match="this loss is symmetric; set clip_epsilon"):
        loss.clip_epsilon_low = 0.1
    pair = ClipPPOLoss(actor, critic(), clip_epsilon=(0.1, 0.3))
    with pytest.raises(AttributeError, match="clip_epsilon_high"):
        pair.clip_epsilon = 0.1


# ---- actors of other libraries


def test_a_plain_normal_of_another_library_is_summed_over_its_event_dims() -> None:
    class Split(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x[..., :3], x[..., 3:6].exp()

    net = TensorDictModule(Split(), ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(
        net, ["loc", "scale"], distribution_class=torch.distributions.Normal, return_log_prob=True
    )
    td = actor(TensorDict({"observation": torch.randn(5, FEATURES)}, [5])).detach()
    assert td["action_log_prob"].shape == torch.Size([5, 3])
    td["advantage"] = td["value_target"] = torch.randn(5, 1)
    out = ClipPPOLoss(actor, critic())(td)
    torch.testing.assert_close(out["loss_objective"], -td["advantage"].mean())
    dist = torch.distributions.Normal(td["loc"], td["scale"])
    torch.testing.assert_close(out["entropy"], dist.entropy().sum(-1).mean())


# ---- what a user does wrong


def wrong(change: Any, **options: Any) -> None:
    case = HEADS[1]
    td = collect(case, actor := case.actor(), [5])
    loss = ClipPPOLoss(actor, critic(), **options)
    change(td, loss)
    loss(td)


def setter(key: str, value: Any) -> Any:
    def change(td: TensorDict, _: ClipPPOLoss) -> None:
        td[key] = value(td[key])

    return change


def dropper(*keys: str) -> Any:
    def change(td: TensorDict, _: ClipPPOLoss) -> None:
        for key in keys:
            del td[key]

    return change


def illegal(td: TensorDict, _: ClipPPOLoss) -> None:
    td["action_mask"] = torch.ones(5, 7, dtype=torch.bool)
    td["action"][:] = 0
    td["action"][3] = 4
    td["action_mask"][3, 4] = False


MISUSE = {
    "flat advantage": (setter("advantage", lambda x: x.squeeze(-1)), ValueError,
        r"'advantage': expected shape \[5, 1\], got \[5\]; .*unsqueeze"),
    "advantage per dim": (setter("advantage", lambda x: x.expand(5, 3)), ValueError,
        r"'advantage': expected shape \[5, 1\], got \[5, 3\]"),
    "log-prob not reduced": (setter("action_log_prob", lambda x: x.unsqueeze(-1)), ValueError,
        r"'action_log_prob': expected shape \[5\], got \[5, 1\]; one log-prob per row"),
    "action with a stray dim": (setter("action", lambda x: x.unsqueeze(-1)), ValueError,
        r"'action': expected shape \[5\], got \[5, 1\]; no dim of an action may be stray"),
    "illegal action": (illegal, ValueError,
        r"'action': the stored action 4 in row 3 \(1 of 5\) is illegal under the stored mask"),
    "missing mask": (dropper("action_mask"), KeyError,
        "'action_mask': not in the tensordict, which holds"),
    "missing action": (dropper("action"), KeyError, "'action': not in the tensordict"),
    "missing log-prob": (dropper("action_log_prob"), KeyError,
        "'action_log_prob': not in .*return_log_prob=True"),
    "missing target": (dropper("value_target"), KeyError, "'value_target': not in .*GAE"),
    "missing value": (dropper("state_value"), KeyError, "'state_value': not in .*clip_value"),
    "all-False row": (setter("action_mask", torch.zeros_like), ValueError,
        "'action_mask': no legal choice in rows 0, 1, 2, 3, 4"),
    "wrong mask": (setter("action_mask", lambda x: x[:, :3]), ValueError,
        r"'action_mask': expected shape \[5, 7\], got \[5, 3\]"),
    "nan observation": (setter("observation", lambda x: x * math.nan), ValueError,
        "'action_logits': nan in rows"),
    "value of the wrong shape": (setter("value_target", lambda x: x.expand(5, 2)), ValueError,
        r"'value_target': expected shape \[5, 1\], got \[5, 2\]; .* output, 'state_value'"),
    "two rewards": (lambda _, loss: loss.set_keys(reward=["a", "b"]), ValueError,
        r"reward: expected one key, got \['a', 'b'\]; .*one loss per agent group"),
    "two dones": (lambda _, loss: loss.set_keys(done=["a", "b"]), ValueError, "done: expected one"),
    "unknown key": (lambda _, loss: loss.set_keys(acton="a"), ValueError, "acton"),
    "stored action with grad": (setter("action", lambda x: x.float().requires_grad_()), ValueError,
        "'action': expected a stored action, got one that requires grad"),
    "stored log-prob with grad": (lambda td, _: td["action_log_prob"].requires_grad_(), ValueError,
        "'action_log_prob': expected a stored log-prob"),
    "two log-probs for one leaf": (lambda _, loss: loss.set_keys(sample_log_prob=["a", "b"]),
        ValueError, r"sample_log_prob: expected one key per leaf \['action'\], got \['a', 'b'\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_answered_with_the_key_what_was_found_and_what_to_do(name: str) -> None:
    change, error, message = MISUSE[name]
    with pytest.raises(error, match=message):
        wrong(change, clip_value=0.1)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no actor": (
        {"actor_network": None},
        TypeError,
        "actor_network: expected a module with get_di",
    ),
    "epsilon": ({"clip_epsilon": 1.5}, ValueError, "clip_epsilon: .* low one must be < 1"),
    "clip_value": (
        {"clip_epsilon": (0.1, 0.2), "clip_value": True},
        ValueError,
        "clip_value=True: expected one clip_epsilon",
    ),
    "critic loss": ({"loss_critic_type": "huber"}, ValueError, "loss_critic_type: expected one of"),
    "reduction": ({"reduction": "average"}, ValueError, "reduction: expected one of"),
    "unknown leaf": ({"entropy_coeff": {"acton": 1.0}}, ValueError, "expected one coefficient for"),
    "surplus leaf": (
        {"entropy_coeff": {"action": 1.0, "other": 1.0}},
        ValueError,
        r"of the leaves \['action'\]",
    ),
    "twice": (
        {"entropy_coeff": {"action": 1.0, "action_log_prob": 1.0}},
        ValueError,
        "expected one coefficient",
    ),
    "not a number": ({"entropy_coeff": "0.1"}, TypeError, "entropy_coeff: expected a number"),
    "misspelt": ({"entropy_coef": 0.1}, TypeError, "entropy_coef"),
    "ratio cap": ({"max_importance_ratio": -1.0}, ValueError, "max_importance_ratio: .* > 0"),
    "delay": ({"delay_actor": True, "functional": False}, ValueError, "needs functional=True"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_in_the_constructor(name: str) -> None:
    options, error, message = BAD_ARGUMENTS[name]
    arguments = {"actor_network": HEADS[1].actor(), "critic_network": critic(), **options}
    with pytest.raises(error, match=message):
        ClipPPOLoss(**arguments)


def test_without_advantage_and_critic_the_error_says_what_to_run() -> None:
    td = collect(HEADS[1], actor := HEADS[1].actor(), [5])
    with pytest.raises(KeyError, match=r"'advantage': not in .*run a value estimator first"):
        ClipPPOLoss(actor, None)(td.exclude("advantage"))
