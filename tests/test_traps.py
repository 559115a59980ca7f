"""Set-ups that went wrong once, each a silent wrong number or an error without a reason."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    set_composite_lp_aggregate,
)
from torch import Tensor, nn
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal, kl_divergence
from torchrl.data import Binary, Bounded, Categorical, Composite, OneHot
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import LSTMModule, MultiAgentMLP, ProbabilisticActor

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    LeafHead,
    MaskedCategorical,
    MultiCategoricalHead,
    NormalHead,
    TanhNormal,
    TanhNormalHead,
    make_actor,
    make_head,
)
from tdheads.distributions import IndependentLeaf
from tdheads.losses.adapter import as_action_distribution, leaf_entropies
from tests.batches import collect, gradients
from tests.cases import FEATURES, HEADS, HeadCase, case_ids, critic

B = 5
all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))


def identity_actor(head: Any, **params: Tensor) -> tuple[Any, TensorDict]:
    """An actor whose parameters are in the tensordict already."""
    td = TensorDict({"observation": torch.randn(B, FEATURES)}, [B])
    td.update(params)
    return head, td


# ---- shapes of actions


@pytest.mark.parametrize("shape", [(B,), (B, 1, 1), (1, 1), (B, 2)], ids=str)
def test_a_continuous_action_with_a_stray_or_missing_dim_is_an_error(
    shape: tuple[int, ...],
) -> None:
    head, td = identity_actor(
        NormalHead("action", (1,)),
        action_loc=torch.zeros(B, 1), action_scale=torch.zeros(B, 1),
    )  # fmt: skip
    td = head(td)
    td["advantage"] = td["value_target"] = torch.zeros(B, 1)
    wrong = torch.zeros(shape)
    with pytest.raises(ValueError, match=r"'action': expected shape .*5, 1\], got"):
        head.get_dist(td).log_prob(wrong)
    td.batch_size = []
    td["action"] = wrong
    with pytest.raises(ValueError, match=r"'action': expected shape \[5, 1\], got"):
        ClipPPOLoss(head, critic())(td)


def foreign(dist: Any, width: int, **kwargs: Any) -> ProbabilisticActor:
    """A TorchRL actor."""

    class Split(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x[..., :width], x[..., width : 2 * width].exp()

    net = TensorDictModule(Split(), ["observation"], ["loc", "scale"])
    return ProbabilisticActor(
        net, ["loc", "scale"], distribution_class=dist, return_log_prob=True, **kwargs
    )


@pytest.mark.parametrize("dist", [Normal, TanhNormal])
def test_elementwise_distributions_in_a_foreign_actor_are_summed(dist: Any) -> None:
    actor = foreign(dist, 3)
    td = actor(TensorDict({"observation": torch.randn(B, FEATURES)}, [B])).detach()
    td["advantage"] = td["value_target"] = torch.randn(B, 1)
    out = ClipPPOLoss(actor, critic())(td)
    built = dist(td["loc"], td["scale"])
    torch.testing.assert_close(out["entropy"], built.entropy().sum(-1).mean())
    assert out["max_ratio"] == 1
    td["action"] = td["action"][..., :1]
    with pytest.raises(ValueError, match=r"'action': expected shape \[5, 3\], got \[5, 1\]"):
        ClipPPOLoss(actor, critic())(td)


def test_an_unreduced_log_prob_is_an_error_for_a_head() -> None:
    td = collect(HEADS[-1], actor := HEADS[-1].actor(), [B])
    td["where_log_prob"] = torch.zeros(B, 3)
    with pytest.raises(ValueError, match=r"'where_log_prob': expected shape \[5\], got \[5, 3\]"):
        ClipPPOLoss(actor, critic())(td)


@pytest.mark.parametrize("name", ["OneHotCategorical", "MaskedOneHotCategorical"])
def test_torchrls_one_hot_actors_give_torchrls_numbers(name: str) -> None:
    import torchrl.modules
    from torchrl.objectives import ClipPPOLoss as TorchRLClipPPOLoss

    keys = ["logits", "mask"] if name.startswith("Masked") else ["logits"]
    net = TensorDictModule(nn.Linear(FEATURES, 4), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        net, keys, distribution_class=getattr(torchrl.modules, name), return_log_prob=True
    )
    td = TensorDict({"observation": torch.randn(B, FEATURES)}, [B])
    td["mask"] = torch.ones(B, 4, dtype=torch.bool)
    td = actor(td).detach()
    assert td["action"].shape == torch.Size([B, 4])
    td["advantage"] = td["value_target"] = torch.randn(B, 1)
    td["action_log_prob"] -= 0.3
    value = critic()
    ours, theirs = (cls(actor, value)(td) for cls in (ClipPPOLoss, TorchRLClipPPOLoss))
    for key in ("loss_objective", "loss_entropy", "entropy", "kl_approx", "clip_fraction"):
        torch.testing.assert_close(ours[key], theirs[key].squeeze())


def test_the_sampled_entropy_of_a_saturated_foreign_tanh_normal() -> None:
    from torchrl.modules import TanhNormal as TorchRLTanhNormal

    dist = TorchRLTanhNormal(torch.full((4000, 1), 8.0), torch.full((4000, 1), 0.5))
    leaves = as_action_distribution(dist, ["action"], torch.Size([4000]))
    found = leaf_entropies(leaves, 1)["action"].mean()
    expected = TanhNormal(torch.tensor([8.0]), 0.5).entropy()
    # the spread of one draw is about 2, that of the mean of 4,000 about 0.03
    assert found.item() == pytest.approx(expected.item(), abs=0.15)


# ---- rows that do not count


def test_neighbours_history_and_team_state_stay_inputs_of_valid_rows() -> None:
    net = MultiAgentMLP(4, 3, n_agents=3, centralized=True, share_params=True, num_cells=[8])
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(net, [("agents", "obs")], [("agents", "action_logits")]),
        CategoricalHead(("agents", "action"), 3),
    )
    obs = torch.randn(7, 3, 4)
    alive = torch.tensor([[True, True, False]]).expand(7, 3).clone()
    td = TensorDict({"agents": TensorDict({"obs": obs, "alive": alive}, [7, 3])}, [7])
    td["state"] = torch.randn(7, 3)  # as wide as there are agents: not per agent for all that
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        td = actor(td)
    value = TensorDictModule(nn.Linear(3, 1), ["state"], ["state_value"])
    td["advantage"] = torch.randn(7, 1)
    td["value_target"] = value(td.copy())["state_value"].detach()
    loss = ClipPPOLoss(actor, value)
    loss.loss_mask_key = ("agents", "alive")
    out = loss(td)
    assert out["max_ratio"] == 1
    assert out["loss_critic"].item() == pytest.approx(0, abs=1e-12)


def test_a_burn_in_mask_leaves_the_recurrent_state_alone() -> None:
    lstm = LSTMModule(FEATURES, 8, in_key="observation", out_key="hidden")
    actor = make_actor(lstm, CategoricalHead("action", 3), num_features=8, gain=1.0)
    td = TensorDict({"observation": torch.randn(2, 9, FEATURES)}, [2, 9])
    td["is_init"] = torch.zeros(2, 9, 1, dtype=torch.bool)
    td["recurrent_state_h"] = td["recurrent_state_c"] = torch.zeros(2, 9, 1, 8)
    td["advantage"] = td["value_target"] = torch.randn(2, 9, 1)
    td["action"] = torch.zeros(2, 9, dtype=torch.int64)
    td["action_log_prob"] = torch.zeros(2, 9)
    loss = ClipPPOLoss(actor, critic(), reduction="none")
    full = loss(td.clone())["loss_objective"]
    td["collector", "mask"] = torch.ones(2, 9, 1, dtype=torch.bool)
    td["collector", "mask"][:, :3] = False
    assert (loss(td)["loss_objective"][:, 3:] == full[:, 3:]).all()


@all_heads
def test_a_batch_without_a_valid_row_changes_nothing(case: HeadCase) -> None:
    actor, value = case.actor(), critic()
    td = collect(case, actor, [B])
    for key, entry in td.items(True, True):
        td[key] = torch.full_like(entry, math.nan) if entry.is_floating_point() else entry * 0
    td["collector", "mask"] = torch.zeros(B, 1, dtype=torch.bool)
    loss = ClipPPOLoss(actor, value, normalize_advantage=True, clip_value=0.1)
    out, grads = gradients(loss, td)
    assert all(figure.isfinite().all() for figure in out.values(True, True))
    assert out["loss_objective"] == 0
    assert all((grad == 0).all() for grad in grads.values())


@all_heads
def test_zero_rows_give_finite_figures(case: HeadCase) -> None:
    td = collect(case, actor := case.actor(), [0])
    out = ClipPPOLoss(actor, critic())(td)
    assert all(figure.isfinite().all() for figure in out.values(True, True))


def test_a_mask_works_without_batch_dims_of_the_tensordict() -> None:
    td = collect(HEADS[1], actor := HEADS[1].actor(), [B])
    td["collector", "mask"] = torch.tensor([True, True, False, True, True])
    loss = ClipPPOLoss(actor, critic())
    expected = loss(td)
    flat = TensorDict(td.to_dict(), [])
    for key, figure in loss(flat).items(True, True):
        torch.testing.assert_close(figure, expected[key])


def test_validity_masks_of_the_wrong_shape_and_misspelt_ones_are_errors() -> None:
    td = collect(HEADS[1], actor := HEADS[1].actor(), [B])
    loss = ClipPPOLoss(actor, critic())
    td["shifted_valid"] = torch.ones(B, 2, dtype=torch.bool)
    with pytest.raises(
        ValueError, match=r"validity mask .* of shape \[5, 2\]: expected one entry per"
    ):
        loss(td)
    td["shifted_valid"] = torch.ones(B + 1, dtype=torch.bool)[:B]
    loss.loss_mask_key = "vaild"
    with pytest.raises(KeyError, match=r"'vaild': not in .*it is the loss_mask_key"):
        loss(td)


# ---- agents


class UsersHead(LeafHead):
    """A head that returns a distribution of torch."""

    def __init__(self, action_key: Any, n: int) -> None:
        super().__init__(action_key, {"logits": [n]})

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> TorchCategorical:
        return TorchCategorical(logits=logits)


def torchrl_agents() -> ProbabilisticActor:
    net = TensorDictModule(nn.Identity(), [("agents", "logits")], [("agents", "logits")])
    return ProbabilisticActor(
        net,
        in_keys=[("agents", "logits")],
        out_keys=[("agents", "action")],
        distribution_class=TorchCategorical,
        return_log_prob=True,
    )


@pytest.mark.parametrize("kind", ["head", "users head", "torchrl"])
def test_a_team_advantage_means_per_agent_ratios_for_every_actor(kind: str) -> None:
    actor = {
        "head": lambda: CategoricalHead(("agents", "action"), 5, logits=("agents", "logits")),
        "users head": lambda: UsersHead(("agents", "action"), 5),
        "torchrl": torchrl_agents,
    }[kind]()
    logits = torch.randn(6, 3, 5)
    agents = TensorDict({"logits": logits, "action_logits": logits}, [6, 3])
    td = actor(TensorDict({"agents": agents, "observation": torch.randn(6, FEATURES)}, [6]))
    td["agents", "action_log_prob"] = td["agents", "action_log_prob"] - 0.15
    td["advantage"] = td["value_target"] = torch.randn(6, 1)
    out = ClipPPOLoss(actor, critic(), functional=False)(td.detach())
    assert out["max_ratio"].item() == pytest.approx(math.exp(0.15), rel=1e-5)


def test_agents_with_different_actions_keep_to_their_own() -> None:
    choices = torch.stack([Composite(action=Categorical(5)), Composite(action=Categorical(3))], 0)
    boxes = Composite(
        action=Bounded(torch.tensor([[-1.0], [-2.0]]), torch.tensor([[1.0], [2.0]]), (2, 1)),
        shape=(2,),
    )
    for group in (choices, boxes):
        for lead in ((), (4,)):
            spec = Composite(agents=group).expand(*lead)
            head = make_head(spec)
            hidden = torch.randn(500, *lead, 2, 8) * 10
            agents = TensorDict({"hidden": hidden}, hidden.shape[:-1])
            td = TensorDict({"agents": agents}, hidden.shape[:-2])
            with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
                td = head(head.projection(8, ("agents", "hidden"), gain=1.0)(td))
            actions = td["agents", "action"].reshape(-1, 2)
            first, second = actions.unbind(-1)
            assert first.abs().max() == (4 if group is choices else pytest.approx(1, abs=1e-3))
            assert second.abs().max() == (2 if group is choices else pytest.approx(2, abs=1e-3))
    keys = torch.stack([Composite(a=Categorical(5)), Composite(b=Categorical(3))], 0)
    with pytest.raises(ValueError, match="only some agents of a group have 'a', 'b'"):
        make_head(Composite(agents=keys))
    kinds = torch.stack([Composite(a=OneHot(5)), Composite(a=OneHot(3))], 0)
    with pytest.raises(ValueError, match=r"\('agents', 'a'\): expected actions of one shape"):
        make_head(Composite(agents=kinds))


# ---- keys and flags


def test_entropy_coefficients_follow_their_leaf_when_keys_are_set_in_another_order() -> None:
    td = collect(HEADS[-1], actor := HEADS[-1].actor(), [B])
    coeff = dict(zip(actor.dist_sample_keys, [1.0, 0.0, 0.5, 0.25], strict=True))
    loss = ClipPPOLoss(actor, critic(), entropy_coeff=coeff)
    expected = loss(td)
    actions, log_probs = actor.dist_sample_keys[::-1], actor.log_prob_keys[::-1]
    loss.set_keys(action=actions, sample_log_prob=log_probs)
    found = loss(td)
    torch.testing.assert_close(found["loss_entropy"], expected["loss_entropy"])
    torch.testing.assert_close(found["leaf_kl_approx"], expected["leaf_kl_approx"])
    with pytest.raises(ValueError, match="there are entropy coefficients for"):
        loss.set_keys(action=["kind", "where"])


@pytest.mark.parametrize("at_build", [None, True, False])
@pytest.mark.parametrize("at_loss", [None, True, False])
def test_foreign_composites_of_every_flag(at_build: bool | None, at_loss: bool | None) -> None:
    def flag(value: bool | None) -> Any:
        return contextlib.nullcontext() if value is None else set_composite_lp_aggregate(value)

    class Params(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x[..., :3], x[..., 3:7]

    keys = [("params", "a", "logits"), ("params", "b", "logits")]
    with flag(at_build):
        actor = ProbabilisticActor(
            TensorDictModule(Params(), ["observation"], keys),
            in_keys=["params"],
            distribution_class=CompositeDistribution,
            distribution_kwargs={
                "distribution_map": {"a": TorchCategorical, "b": TorchCategorical}
            },
            return_log_prob=True,
        )
        td = actor(TensorDict({"observation": torch.randn(B, FEATURES)}, [B])).detach()
    td["advantage"] = td["value_target"] = torch.randn(B, 1)
    with flag(at_loss):
        loss = ClipPPOLoss(actor, critic())
        out = loss(td)
    assert out["max_ratio"].item() == pytest.approx(1, abs=1e-6)
    assert set(out.keys(True, True)) == set(loss.out_keys)


def test_a_composite_that_two_actors_share() -> None:
    head = CompositeHead(CategoricalHead("k", n=3), NormalHead("w", (2,), free_scale=True))
    bodies = [TensorDictModule(nn.Linear(4, 8), ["observation"], ["hidden"]) for _ in range(2)]
    both = nn.ModuleList([make_actor(body, head, num_features=8) for body in bodies])
    names = [name for name, _ in both.named_parameters()]
    assert len(names) == len(set(names)) == 2 * 4 + 1


# ---- dtypes


def test_float64_actions_of_a_float32_network_have_finite_scores_at_the_bounds() -> None:
    for bounds in ((-1.0, 1.0), (-0.1, 0.1)):
        spec = Bounded(*bounds, (1,), dtype=torch.float64)
        td = TensorDict({"action_loc": torch.tensor([[20.0], [-20.0], [0.0]])}, [3])
        td["action_scale"] = torch.zeros(3, 1)
        td = make_head(spec)(td)
        assert td["action_log_prob"].isfinite().all()
        assert td["action"].dtype == torch.float64
        assert spec.expand(3, 1).is_in(td["action"])


@pytest.mark.parametrize("cast", ["bfloat16", "half", "double"])
def test_casting_a_module_does_not_round_its_bounds(cast: str) -> None:
    head = getattr(TanhNormalHead("a", 0.0, 1e5, (1,)), cast)()
    td = TensorDict({"a_loc": torch.full((1, 1), 50.0), "a_scale": torch.zeros(1, 1)}, [1])
    assert head(td)["a"].item() == 1e5
    stored = torch.tensor([[0.7]], dtype=torch.float64)
    dist = TanhNormalHead("a", -0.7, 0.7, (1,)).get_dist(td)
    assert dist.log_prob(stored).isfinite().all()


def test_indices_survive_to_empty() -> None:
    head = MultiCategoricalHead("action", [3, 2, 5], mask=True)
    moved = MultiCategoricalHead("action", [3, 2, 5], mask=True).to_empty(device="cpu")
    td = TensorDict({"action_logits": torch.randn(B, 10)}, [B])
    td["action_mask"] = torch.ones(B, 10, dtype=torch.bool)
    assert (head.get_dist(td).logits == moved.get_dist(td).logits).all()


def test_heads_can_be_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        heads = [TanhNormalHead("a", 0.0, 1.0, (2,)), MultiCategoricalHead("b", [3, 2])]
    assert [head.action_key for head in heads] == ["a", "b"]
    assert all(head.num_params == n for head, n in zip(heads, (4, 5), strict=True))


# ---- single figures


def test_kl_is_infinite_also_where_the_forbidden_probability_rounds_to_zero() -> None:
    p = MaskedCategorical(torch.tensor([[0.0, -200.0]]))
    q = MaskedCategorical(torch.zeros(1, 2), torch.tensor([[True, False]]))
    assert kl_divergence(p, q) == torch.inf


def test_independent_leaves_with_event_dims_inside_expand() -> None:
    base = torch.distributions.OneHotCategorical(torch.ones(4, 3, 5))
    wide = IndependentLeaf(base, 1).expand([2, 4])
    assert wide.event_shape == torch.Size([3, 5])
    assert wide.batch_shape == torch.Size([2, 4])


def test_a_float_that_is_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"choice 0\.69.* in row 1 .* is not one of 0 to 2"):
        MaskedCategorical(torch.zeros(2, 3)).log_prob(torch.tensor([1.0, 0.7]))


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="expected positive numbers, got -1 in row 0"):
        TanhNormal(torch.zeros(2), torch.tensor([-1.0, 1.0]))


# ---- make_head


def test_narrow_integer_specs_do_not_overflow() -> None:
    for dtype, high in ((torch.int8, 127), (torch.uint8, 255)):
        head = make_head(Bounded(0, high, (), dtype=dtype))
        assert isinstance(head, CategoricalHead)
        assert head.n == high + 1


def test_a_leafs_own_mask_is_found_beside_one_of_another_shape() -> None:
    head = make_head(
        Composite(kind=Categorical(3), target=Categorical(5)),
        Composite(kind_mask=Binary(3), target_mask=Binary(5), action_mask=Binary(8)),
    )
    assert [leaf.mask_key for leaf in head.leaves] == ["kind_mask", "target_mask"]


def test_one_mask_that_fits_two_leaves_is_not_given_to_both() -> None:
    with pytest.raises(ValueError, match="'action_mask': it may be the mask of 'a' or of 'b'"):
        make_head(Composite(a=Categorical(3), b=Categorical(3)), Composite(action_mask=Binary(3)))


MESSAGES: dict[str, tuple[Any, type[Exception], str]] = {
    "mask of a continuous leaf": (
        lambda: NormalHead("a", (2,), mask=True), ValueError, "'a': a NormalHead takes no mask",
    ),
    "network that is no module": (
        lambda: make_actor(nn.Linear(2, 2), CategoricalHead("a", 2)), TypeError,
        "backbone: expected a TensorDictModule, got a Linear; wrap it",
    ),
    "list of heads": (
        lambda: CompositeHead([CategoricalHead("a", 2)]), TypeError, "expected heads, got a list",
    ),
    "no spec": (lambda: make_head(None), TypeError, "expected a TorchRL spec, got a NoneType"),
    "options of a leaf": (
        lambda: CompositeHead(CategoricalHead("a", 2, return_log_prob=False)), ValueError,
        "are given to the CompositeHead",
    ),
    "colliding keys": (
        lambda: CompositeHead(CategoricalHead("a", 2), CategoricalHead("a_log_prob", 2)),
        ValueError, "two leaves write the same key",
    ),
    "coefficients as a tensor": (
        lambda: ClipPPOLoss(HEADS[1].actor(), critic(), entropy_coeff=torch.tensor([0.1, 0.2])),
        TypeError, "entropy_coeff: expected a number or a mapping",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    build, error, message = MESSAGES[name]
    with pytest.raises(error, match=message):
        build()


def test_a_forgotten_advantage_says_what_is_missing() -> None:
    td = collect(HEADS[1], actor := HEADS[1].actor(), [B]).exclude("advantage")
    with pytest.raises(KeyError, match=r"\('next', 'reward'\): not in .*run a value estimator"):
        ClipPPOLoss(actor, critic())(td)


# ---- devices


@all_heads
def test_distributions_move_to_another_device(case: HeadCase) -> None:
    actor = case.actor(validate=False)
    dist = actor.get_dist(case.inputs([B]))
    here = dist.to("cpu")
    assert type(here) is type(dist)
    sample = actor(case.inputs([B]))
    stored = (
        sample if isinstance(dist, CompositeDistribution) else (sample[actor.dist_sample_keys[0]])
    )
    before, after = dist.log_prob(stored), here.log_prob(stored)
    assert (before == after).all()
    leaf = (
        next(iter(dist.dists.values()), None) if isinstance(dist, CompositeDistribution) else dist
    )
    if leaf is not None:
        moved = leaf.to("meta") if hasattr(leaf, "to") else leaf
        assert all(t.is_meta for t in _tensors(moved))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, torch.distributions.Distribution):
        return [t for entry in vars(value).values() for t in _tensors(entry)]
    return []


@pytest.mark.parametrize(("dtype", "n"), [(torch.int8, 128), (torch.uint8, 256)])
def test_as_many_choices_as_a_narrow_dtype_can_hold(dtype: torch.dtype, n: int) -> None:
    head = CategoricalHead("action", n, dtype=dtype)
    drawn = head(TensorDict({"action_logits": torch.randn(50, n)}, [50]))
    assert drawn["action"].dtype is dtype
    torch.testing.assert_close(
        head.get_dist(drawn).log_prob(drawn["action"]), drawn["action_log_prob"]
    )


@pytest.mark.parametrize("score", ["log_prob", "entropy"])
def test_an_empty_row_has_gradient_zero_whatever_comes_back(score: str) -> None:
    from tdheads.distributions import MaskedCategorical

    logits = torch.randn(3, 5, requires_grad=True)
    mask = torch.tensor([[True, True, False, True, False], [False] * 5, [True] * 5])
    dist = MaskedCategorical(logits, mask=mask, on_empty="neutral")
    out = dist.log_prob(torch.tensor([3, 0, 2])) if score == "log_prob" else dist.entropy()
    (found,) = torch.autograd.grad(out, logits, torch.tensor([1.0, math.nan, math.inf]))
    assert found[0].isfinite().all()
    assert found[0].any()
    assert (found[1] == 0).all()
