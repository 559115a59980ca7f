"""Laws of the heads: what they read, write and score, in every mode of TorchRL."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    TensorDictModule,
    TensorDictSequential,
    set_composite_lp_aggregate,
)
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn
from torch.distributions import Independent
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import A2CLoss, ReinforceLoss

from tdheads import (
    ActionDistribution,
    BernoulliHead,
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    Head,
    LeafHead,
    MultiCategoricalHead,
    MultiOneHotHead,
    NormalHead,
    OneHotCategoricalHead,
    SparseCategoricalHead,
    TanhNormalHead,
    make_actor,
)
from tdheads.distributions import MaskedCategorical
from tdheads.keys import suffixed
from tests.cases import FEATURES, HEADS, LISTED, NVEC, HeadCase, N, case_ids, critic
from tests.versions import A2C_OPTIONS

B = 5
all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
all_modes = pytest.mark.parametrize(
    "mode", ["RANDOM", "MODE", "DETERMINISTIC", "MEAN"], ids=str.lower
)
CONTINUOUS = ("normal", "normal free", "tanh", "beta", "box", "hybrid")
DISCRETE = [case for case in HEADS if case.name not in CONTINUOUS]
discrete_heads = pytest.mark.parametrize("case", DISCRETE, ids=case_ids(DISCRETE))


MASKED = [case for case in HEADS if case.constraints]
masked_heads = pytest.mark.parametrize("case", MASKED, ids=case_ids(MASKED))


def act(actor: nn.Module, td: TensorDict, mode: str = "RANDOM") -> TensorDict:
    with set_exploration_type(ExplorationType[mode]), torch.no_grad():
        return actor(td.clone())


@all_heads
@all_modes
def test_keys_written_are_the_keys_declared(case: HeadCase, mode: str) -> None:
    actor, td = case.actor(), case.inputs([B])
    before = set(td.keys(True, True))
    after = set(act(actor, td, mode).keys(True, True))
    assert after - before == set(actor.out_keys)
    head = actor[-1]
    assert list(head.out_keys[: 2 * len(head.leaves)]) == [
        *head.dist_sample_keys,
        *head.log_prob_keys,
    ]
    assert set(actor.in_keys) == before


def check_ratios(actor: nn.Module, td: TensorDict) -> None:
    """Score the stored actions again: every log-ratio is exactly 0."""
    dist = actor.get_dist(td)
    for action_key, key in zip(actor.dist_sample_keys, actor.log_prob_keys, strict=True):
        leaf = dist[action_key] if isinstance(dist, ActionDistribution) else dist
        assert td[key].dtype in (torch.float32, torch.float64)
        assert td[key].isfinite().all()
        assert (leaf.log_prob(td[action_key]) == td[key]).all()


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@all_heads
@all_modes
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_unchanged_weights_every_ratio_is_exactly_one(
    case: HeadCase, mode: str, dtype: torch.dtype
) -> None:
    actor = case.actor(dtype)
    check_ratios(actor, act(actor, case.inputs([B], dtype=dtype), mode))


@all_heads
@pytest.mark.parametrize("batch", [[], [0], [1], [2, 3], [2, 3, 5], [2, 1, 3, 2]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_ratio_is_exactly_one_for_every_number_of_batch_dims(
    case: HeadCase, batch: Sequence[int], dtype: torch.dtype
) -> None:
    actor = case.actor(dtype)
    td = act(actor, case.inputs(batch, dtype=dtype))
    assert all(td[key].shape == torch.Size(batch) for key in actor.log_prob_keys)
    check_ratios(actor, td)


BOUNDED = [case for case in HEADS if case.name in ("tanh", "beta", "box", "conditional", "hybrid")]


@pytest.mark.parametrize("case", BOUNDED, ids=case_ids(BOUNDED))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_ratio_is_exactly_one_at_the_bounds(case: HeadCase, dtype: torch.dtype) -> None:
    actor = case.actor(dtype)
    with torch.no_grad():
        for param in actor[-2].parameters():
            param *= 40
    td = case.inputs([200], dtype=dtype)
    check_ratios(actor, act(actor, td))
    td = act(actor, td, "MODE")
    check_ratios(actor, td)
    key = {"conditional": "force", "hybrid": "where"}.get(case.name, "action")
    low, high = {"tanh": (0, 10), "conditional": (1, 3)}.get(case.name, (-1, 3))
    last = td[key][..., -1]  # of the box only the last entry has two finite bounds
    assert ((last - high).abs() < 1e-5).any()
    assert ((last - low).abs() < 1e-5).any()


@all_heads
@all_modes
def test_actions_are_legal_in_every_mode(case: HeadCase, mode: str) -> None:
    actor, td = case.actor(), case.inputs([1000])
    for key in actor.log_prob_keys:
        assert (act(actor, td, mode)[key] > -torch.inf).all()


@all_heads
def test_deterministic_modes_repeat_and_random_does_not(case: HeadCase) -> None:
    actor, td = case.actor(), case.inputs([100])
    key = actor.dist_sample_keys[0]
    for mode in ("MODE", "DETERMINISTIC", "MEAN"):
        assert (act(actor, td, mode)[key] == act(actor, td, mode)[key]).all()
    assert (act(actor, td)[key] != act(actor, td)[key]).any()


@discrete_heads
def test_a_discrete_leaf_has_no_mean_and_gives_its_mode(case: HeadCase) -> None:
    actor, td = case.actor(), case.inputs([B])
    key = actor.dist_sample_keys[0]
    assert (act(actor, td, "MEAN")[key] == act(actor, td, "MODE")[key]).all()


@all_heads
@pytest.mark.parametrize("at_build", [None, True, False])
@pytest.mark.parametrize("at_use", [None, True, False])
def test_no_global_flag_changes_a_key_or_a_shape(
    case: HeadCase, at_build: bool | None, at_use: bool | None
) -> None:
    def flag(value: bool | None) -> Any:
        return contextlib.nullcontext() if value is None else set_composite_lp_aggregate(value)

    torch.manual_seed(0)
    with flag(at_build):
        actor = case.actor()
    torch.manual_seed(0)
    plain = case.actor()
    td = case.inputs([B])
    torch.manual_seed(1)
    expected = act(plain, td)
    with flag(at_use):
        torch.manual_seed(1)
        found = act(actor, td)
        assert actor.log_prob_keys == plain.log_prob_keys
        assert actor.out_keys == plain.out_keys
        scored = actor.log_prob(found)
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        assert (found[key] == value).all()
    assert isinstance(scored, torch.Tensor) != isinstance(plain[-1], CompositeHead)


@all_heads
def test_vmap_over_the_batch(case: HeadCase) -> None:
    actor, td = case.actor(), case.inputs([B])
    expected = act(actor, td, "DETERMINISTIC")
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        found = torch.vmap(actor, randomness="different")(td.clone())
    for key in actor.out_keys:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-5, atol=1e-6)
    drawn = torch.vmap(actor, randomness="different")(td.clone())
    assert set(actor.out_keys) <= set(drawn.keys(True, True))


@all_heads
def test_copies_and_pickles_act_the_same(case: HeadCase) -> None:
    actor, td = case.actor(), case.inputs([B])
    expected = act(actor, td, "DETERMINISTIC")
    for twin in (copy.deepcopy(actor), pickle.loads(pickle.dumps(actor))):
        found = act(twin, td, "DETERMINISTIC")
        for key in actor.out_keys:
            assert (found[key] == expected[key]).all()
    fresh = case.actor()
    fresh.load_state_dict(actor.state_dict())
    found = act(fresh, td, "DETERMINISTIC")
    assert all((found[key] == expected[key]).all() for key in actor.out_keys)


def test_pickled_actors_act_the_same_in_another_process(tmp_path: Path) -> None:
    kept = []
    for case in HEADS:
        actor, td = case.actor(), case.inputs([B])
        kept.append((actor, td, act(actor, td, "DETERMINISTIC")))
    (tmp_path / "sent").write_bytes(pickle.dumps([(actor, td) for actor, td, _ in kept]))
    code = """
import pickle, sys
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type
folder = sys.argv[1]
with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
    out = [actor(td) for actor, td in pickle.load(open(folder + "/sent", "rb"))]
pickle.dump(out, open(folder + "/back", "wb"))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    back = pickle.loads((tmp_path / "back").read_bytes())
    for (actor, _, expected), found in zip(kept, back, strict=True):
        for key in actor.out_keys:
            assert (found[key] == expected[key]).all()


def projected_keys(head: Head) -> list[Any]:
    """Keys of the parameters that a network writes, leaf by leaf."""
    return [key for leaf in head.projected for key in leaf.param_keys.values()]


@all_heads
def test_projection_and_split_write_the_same_keys(case: HeadCase) -> None:
    head = case.build()
    layer = head.projection(13)
    td = case.inputs([B]).update({"hidden": torch.randn(B, 13)})
    projected = layer(td)
    written = set(layer.out_keys)
    assert written == set(head.in_keys) - case.constraints - {"hidden"}
    raw = torch.cat([projected[key].flatten(1) for key in projected_keys(head)], -1)
    assert raw.shape == torch.Size([B, head.num_params])
    split = head.split_params("raw")(TensorDict({"raw": raw}, [B]))
    assert set(split.keys(True, True)) == {*written, "raw"}
    for key in written:
        assert (projected[key] == split[key]).all()


def test_projection_starts_close_to_uniform() -> None:
    head = CategoricalHead("action", N)
    linear = head.projection(64).module[0]
    assert (linear.bias == 0).all()
    gram = linear.weight @ linear.weight.T
    torch.testing.assert_close(gram, torch.eye(N) * 1e-4, rtol=0, atol=1e-7)


def test_a_head_reads_keyword_arguments_as_every_tensordict_module() -> None:
    head = CategoricalHead("action", 3, mask=True)
    action, log_prob = head(
        action_logits=torch.zeros(2, 3), action_mask=torch.tensor([[0, 1, 0], [0, 0, 1]])
    )
    assert action.tolist() == [1, 2]
    assert log_prob.tolist() == [0, 0]


def test_return_log_prob_off() -> None:
    head = CategoricalHead("action", 3, return_log_prob=False)
    td = head(TensorDict({"action_logits": torch.zeros(2, 3)}, [2]))
    assert "action_log_prob" not in td.keys()
    assert head.out_keys == ["action"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_actions_have_the_dtype_that_was_asked_for(dtype: torch.dtype) -> None:
    head = MultiCategoricalHead("action", NVEC, dtype=dtype)
    td = head(TensorDict({"action_logits": torch.zeros(2, sum(NVEC))}, [2]))
    assert td["action"].dtype == dtype


@all_heads
def test_a_generator_of_the_heads_own_makes_draws_repeat(case: HeadCase) -> None:
    actor, td = case.actor(), case.inputs([50])
    head = actor[-1]
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        head.generator = torch.Generator().manual_seed(11)
        draws.append([act(actor, td)[actor.dist_sample_keys[0]] for _ in range(2)])
    assert (torch.get_rng_state() == before).all()
    assert (draws[0][0] == draws[1][0]).all()
    assert (draws[0][1] == draws[1][1]).all()
    assert (draws[0][0] != draws[0][1]).any()


@all_heads
def test_masks_are_read_where_they_are_and_stored_once(case: HeadCase) -> None:
    actor, td = case.actor(), case.inputs([B])
    stored = {key: td[key] for key in case.constraints}
    after = act(actor, td)
    bools = [key for key, value in after.items(True, True) if value.dtype == torch.bool]
    assert set(bools) == set(case.masks)
    assert all((after[key] == mask).all() for key, mask in stored.items())


@all_heads
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_scores_in_float32_and_keeps_every_ratio_at_one(
    case: HeadCase, dtype: torch.dtype
) -> None:
    actor = case.actor()
    with torch.autocast("cpu", dtype=dtype):
        td = act(actor, case.inputs([B]))
        assert all(td[key].dtype == torch.float32 for key in actor.log_prob_keys)
        check_ratios(actor, td)


# ---- continuous parameters


@pytest.mark.parametrize("cls", [NormalHead, TanhNormalHead])
def test_scales_are_mapped_as_torchrl_maps_them(cls: Any) -> None:
    from tensordict.nn import NormalParamExtractor

    raw = torch.linspace(-30, 5, 8)
    head = cls("action", shape=(4,))
    td = TensorDict({"action_loc": raw[:4], "action_scale": raw[4:] - 10}, [])
    base = head.get_dist(td).base_dist
    _, expected = NormalParamExtractor()(torch.cat([raw[:4], raw[4:] - 10]))
    torch.testing.assert_close(base.scale, expected, rtol=0, atol=0)
    assert (base.scale >= 1e-4).all()
    none = cls("action", shape=(4,), scale_mapping="none")
    td["action_scale"] = torch.rand(4) + 0.5
    assert (none.get_dist(td).base_dist.scale == td["action_scale"]).all()


def test_free_scale_is_one_parameter_per_dim_that_starts_at_one() -> None:
    head = NormalHead("action", shape=(3,), free_scale=True)
    assert head.in_keys == ["action_loc"]
    assert [p.shape for p in head.parameters()] == [torch.Size([3])]
    dist = head.get_dist(TensorDict({"action_loc": torch.zeros(2, 3)}, [2]))
    torch.testing.assert_close(dist.base_dist.scale, torch.ones(2, 3))
    dist.log_prob(torch.ones(2, 3)).sum().backward()
    assert head.raw_scale is not None
    assert head.raw_scale.grad is not None


def test_event_dims_are_closed() -> None:
    for shape in [(), (3,), (2, 3)]:
        head = NormalHead("action", shape=shape)
        td = TensorDict(
            {"action_loc": torch.zeros(4, *shape), "action_scale": torch.zeros(4, *shape)}, [4]
        )
        dist = head.get_dist(td)
        assert isinstance(dist, Independent)
        assert dist.event_shape == torch.Size(shape)
        assert head(td)["action_log_prob"].shape == torch.Size([4])


# ---- composites


def test_a_composite_gives_each_leaf_its_own_log_prob() -> None:
    case = HEADS[-1]
    actor, td = case.actor(), case.inputs([B])
    dist = actor.get_dist(td)
    assert isinstance(dist, ActionDistribution)
    assert list(dist) == ["kind", ("arm", "force"), "where", "items"]
    sample = dist.sample((4,))
    assert sample.batch_size == torch.Size([4, B])
    log_prob = dist.log_prob(sample)
    assert set(log_prob.keys(True, True)) == set(actor.log_prob_keys)
    assert all(value.shape == torch.Size([4, B]) for value in log_prob.values(True, True))
    entropy = dist.entropy()
    assert ("arm", "force_entropy") in entropy.keys(True)
    other = case.actor().get_dist(td)
    kl = torch.distributions.kl_divergence(dist, other)
    parts = [torch.distributions.kl_divergence(dist[k], other[k]) for k in dist]
    torch.testing.assert_close(kl, sum(parts))
    assert dist.expand([3, B]).entropy()["kind_entropy"].shape == torch.Size([3, B])


def test_a_composite_in_a_composite_adds_its_leaves() -> None:
    inner = CompositeHead(CategoricalHead("a", 2), CategoricalHead("b", 3))
    head = CompositeHead(inner, CategoricalHead("c", 5))
    assert head.dist_sample_keys == ["a", "b", "c"]
    assert head.num_params == 10


def test_leaves_with_other_batch_dims_are_refused() -> None:
    head = CompositeHead(CategoricalHead("team", 2), CategoricalHead(("agents", "action"), 3))
    td = TensorDict(
        {"team_logits": torch.zeros(4, 2), ("agents", "action_logits"): torch.zeros(4, 5, 3)}, [4]
    )
    with pytest.raises(ValueError, match=r"batch shapes .*\[4\].*\[4, 5\]"):
        head(td)


@pytest.mark.parametrize(
    "build", [lambda: CompositeHead(), lambda: _twice()], ids=["none", "twice"]
)
def test_a_composite_needs_leaves_with_keys_of_their_own(build: Any) -> None:
    with pytest.raises(ValueError, match="each key once"):
        build()


def _twice() -> CompositeHead:
    return CompositeHead(CategoricalHead("a", 2), NormalHead("a"))


@all_heads
def test_the_distribution_at_collection_is_rebuilt_from_what_is_stored(case: HeadCase) -> None:
    actor = case.actor()
    td = act(actor, case.inputs([B]))
    frozen = copy.deepcopy(actor)
    for param in actor.parameters():
        param.data += 0.3 * torch.randn_like(param)
    stored = actor[-1].stored_dist(td.clone())
    expected, moved = frozen.get_dist(td.clone()), actor.get_dist(td.clone())
    kl = torch.distributions.kl_divergence
    for action, key in zip(actor.dist_sample_keys, actor.log_prob_keys, strict=True):
        composite = isinstance(stored, ActionDistribution)
        leaf, old = (stored[action], expected[action]) if composite else (stored, expected)
        torch.testing.assert_close(leaf.log_prob(td[action]), td[key])
        torch.testing.assert_close(leaf.entropy(), old.entropy())
        assert not leaf.log_prob(td[action]).requires_grad
    if case.name not in ("tree", "sequence"):  # stored at the drawn actions, not for all of them
        torch.testing.assert_close(kl(stored, moved), kl(expected, moved))
    assert (kl(stored, moved) > 0).any()


# ---- nothing to choose


def test_on_empty_neutral_acts_with_0_in_rows_without_a_choice() -> None:
    head = CategoricalHead("action", 3, mask=True, on_empty="neutral")
    td = TensorDict({"action_logits": torch.randn(2, 3)}, [2])
    td["action_mask"] = torch.tensor([[False, False, False], [False, False, True]])
    td = head(td)
    assert td["action"].tolist() == [0, 2]
    assert td["action_log_prob"].tolist() == [0, 0]


# ---- what a user does wrong


def masked_td(**changes: Any) -> TensorDict:
    td = TensorDict({"action_logits": torch.zeros(4, 3)}, [4])
    td["action_mask"] = torch.ones(4, 3, dtype=torch.bool)
    for key, value in changes.items():
        td[key] = value
    return td


def test_a_missing_mask_is_an_error_and_never_means_unmasked() -> None:
    head = CategoricalHead("action", 3, mask=True)
    with pytest.raises(KeyError, match=r"'action_mask': not in the tensordict, which holds 'act.*"):
        head(masked_td().exclude("action_mask"))


def test_missing_parameters_are_named() -> None:
    with pytest.raises(KeyError, match=r"'action_scale': not in .*; append head.projection"):
        NormalHead("action", (2,))(TensorDict({"action_loc": torch.zeros(2)}))


@pytest.mark.parametrize("shape", [(3,), (4, 1), (1, 3), (4, 1, 3), (4, 4)], ids=str)
def test_masks_of_the_wrong_shape_are_named_with_both_shapes(shape: tuple[int, ...]) -> None:
    head = CategoricalHead("action", 3, mask=True)
    td = TensorDict({"action_logits": torch.zeros(4, 3)})
    td["action_mask"] = torch.ones(shape)
    with pytest.raises(ValueError, match=r"'action_mask': expected shape \[4, 3\], got \["):
        head(td)


def test_empty_rows_are_named() -> None:
    mask = torch.ones(4, 3)
    mask[1:3] = 0
    with pytest.raises(ValueError, match=r"'action_mask': no legal choice in rows 1, 2 \(2 of 4\)"):
        CategoricalHead("action", 3, mask=True)(masked_td(action_mask=mask))


def test_nan_parameters_are_named() -> None:
    logits = torch.zeros(4, 3)
    logits[2, 0] = torch.nan
    with pytest.raises(ValueError, match=r"'action_logits': nan in row 2 \(1 of 4\); look at"):
        CategoricalHead("action", 3, mask=True)(masked_td(action_logits=logits))
    head = NormalHead("x", (2,))
    td = TensorDict({"x_loc": torch.zeros(3, 2), "x_scale": torch.full((3, 2), torch.nan)}, [3])
    with pytest.raises(ValueError, match=r"'x_scale': nan in rows 0, 1, 2"):
        head(td)


def test_wrong_widths_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"'action_logits': expected shape \[\.\.\., 3\], got \[4, 5"
    ):
        CategoricalHead("action", 3)(TensorDict({"action_logits": torch.zeros(4, 5)}, [4]))
    split = NormalHead("x", (2,)).split_params("raw")
    with pytest.raises(ValueError, match=r"'raw': expected shape \[\.\.\., 4\], got \[3, 5\]"):
        split(TensorDict({"raw": torch.zeros(3, 5)}, [3]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CategoricalHead("action"), "expected the number of choices n >= 1, got n=None"),
        (lambda: CategoricalHead("action", 0), "got n=0"),
        (lambda: MultiCategoricalHead("action"), r"got nvec=\[\]"),
        (lambda: MultiCategoricalHead("action", [2, 0]), r"got nvec=\[2, 0\]"),
        (lambda: CategoricalHead("action", 3, on_empty="skip"), "on_empty: expected one of"),
        (lambda: TanhNormalHead("a", 0.0, torch.inf), "an unbounded action needs a NormalHead"),
        (lambda: TanhNormalHead("a", 1.0, 0.0), "expected finite bounds with low <= high"),
        (lambda: NormalHead("a", free_scale=True, scale="s"), "free_scale=True reads no scale"),
        (lambda: NormalHead("a", scale_mapping="square"), "no mapping 'square'"),
        (
            lambda: make_actor(_body("features"), CategoricalHead("a", 2)),
            "name its output with in_k",
        ),
    ],
)
def test_bad_arguments_say_what_was_expected(build: Any, message: str) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=message):
        build()


def test_misspelt_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="maks"):
        CategoricalHead("action", 3, maks=True)


def _body(out_key: str) -> TensorDictModule:
    return TensorDictModule(nn.Linear(FEATURES, 64), ["observation"], [out_key])


def test_validate_off_looks_at_no_value() -> None:
    head = CategoricalHead("action", 3, mask=True, validate=False)
    dist = head.get_dist(masked_td(action_logits=torch.full((4, 3), torch.nan)))
    assert dist.log_prob(torch.zeros(4)).isnan().all()


@masked_heads
def test_an_action_stored_under_another_mask_is_an_error_that_names_key_row_and_action(
    case: HeadCase,
) -> None:
    actor = case.actor()
    td = act(actor, case.inputs([40], seed=2))
    td["advantage"] = td["value_target"] = torch.zeros(40, 1)
    loss = ClipPPOLoss(actor, critic())
    loss(td.clone())
    # the mask of the next step: what was taken in one row is no longer legal, all else is
    for leaf in actor[-1].leaves:
        if leaf.mask_key not in case.constraints:
            continue
        stale = td.clone()
        row = relevant_row(td, leaf.action_key, case.name == "sequence")
        forbid(stale, leaf, row)
        taken = re.escape(str(td[leaf.action_key][row].tolist()))
        with pytest.raises(
            ValueError,
            match=rf"{re.escape(repr(leaf.action_key))}: the stored action {taken} in row {row} ",
        ):
            loss(stale)


def relevant_row(td: TensorDict, key: Any, sequence: bool) -> int:
    """A row in which the leaf had a choice; to stop a sequence is always legal."""
    rows = td[suffixed(key, "_log_prob")] != 0
    return int((rows & (td[key] != 0) if sequence else rows).nonzero()[-1])


def forbid(td: TensorDict, leaf: LeafHead, row: int) -> None:
    """Make the stored action of one row illegal and something else legal."""
    mask, action = td[leaf.mask_key], td[leaf.action_key][row]
    if isinstance(leaf, SparseCategoricalHead):
        mask[row] = torch.tensor([int(action) - 1 if action else 1] + [-1] * (LISTED - 1))
        return
    if leaf.dependence.mask_given is not None:  # the row of every choice of the parent
        mask[row] = True
        mask[row, :, action] = False
        return
    mask[row] = True
    if isinstance(leaf, BernoulliHead):  # a bit that is 1 may no longer be
        mask[row] = action == 0
    elif isinstance(leaf, MultiCategoricalHead) and leaf.joint:
        mask[(row, *action.tolist())] = False
    elif isinstance(leaf, MultiOneHotHead):
        mask[row, 0, int(action[: NVEC[0]].argmax())] = False
    elif isinstance(leaf, MultiCategoricalHead):
        mask[row].view(-1)[int(action[0])] = False
    elif isinstance(leaf, OneHotCategoricalHead):
        mask[row, int(action.argmax())] = False
    else:
        mask[row, int(action)] = False


# ---- in TorchRL's other losses


# TorchRL's A2CLoss and ReinforceLoss take one action key, whatever the actor
ONE_KEY = [case for case in HEADS if len(case.build().dist_sample_keys) == 1]


@pytest.mark.parametrize("case", ONE_KEY, ids=case_ids(ONE_KEY))
@pytest.mark.parametrize("loss_class", [A2CLoss, ReinforceLoss])
def test_actors_work_unchanged_in_torchrls_other_losses(case: HeadCase, loss_class: Any) -> None:
    if case.name == "one leaf" and loss_class is A2CLoss:
        pytest.skip("TorchRL's A2CLoss calls rsample on every composite, discrete or not")
    actor = case.actor()
    td = act(actor, case.inputs([B]))
    for key in ("advantage", "value_target"):
        td[key] = torch.randn(B, 1)
    loss = loss_class(actor, critic(), **(A2C_OPTIONS if loss_class is A2CLoss else {}))
    loss.set_keys(action=actor.dist_sample_keys[0], sample_log_prob=actor.log_prob_keys[0])
    out = loss(td)
    name = "loss_objective" if loss_class is A2CLoss else "loss_actor"
    out[name].backward()
    grads = [p.grad for p in actor.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)
    assert any((grad != 0).any() for grad in grads if grad is not None)


def test_features_of_another_width_than_the_projection_reads_are_named() -> None:
    body = TensorDictModule(nn.Linear(FEATURES, 32), ["observation"], ["hidden"])
    actor = make_actor(body, CategoricalHead("action", N))
    with pytest.raises(ValueError, match=r"'hidden': expected .* 64\], got .*num_features=32"):
        actor(TensorDict({"observation": torch.zeros(3, FEATURES)}, [3]))


def test_a_log_prob_that_a_subclass_overrides_is_the_one_that_is_written() -> None:
    class Halved(MaskedCategorical):
        def log_prob(self, value: Tensor) -> Tensor:
            return super().log_prob(value) / 2

    class HalvedHead(CategoricalHead):
        def distribution(self, *, mask: Tensor | None, logits: Tensor) -> Halved:
            return Halved(logits, mask)

    head = HalvedHead("action", n=3)
    td = head(TensorDict({"action_logits": torch.randn(4, 3)}, [4]))
    torch.testing.assert_close(td["action_log_prob"], head.get_dist(td).log_prob(td["action"]))
    full = MaskedCategorical(td["action_logits"]).log_prob(td["action"])
    torch.testing.assert_close(2 * td["action_log_prob"], full)


def test_a_leaf_that_was_replaced_acts() -> None:
    head = CompositeHead(CategoricalHead("kind", n=3), NormalHead("force"))
    head.heads[1] = NormalHead("force", free_scale=True)
    td = TensorDict({"kind_logits": torch.zeros(2, 3), "force_loc": torch.zeros(2, 1)}, [2])
    with torch.no_grad():
        head.heads[1].raw_scale.fill_(5)
        assert (head(td)["force_scale"] == 5).all()


def test_parts_of_the_network_that_draw_are_told_how_the_head_does() -> None:
    class Told(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            told.append(interaction_type())
            return x

    told: list[Any] = []
    inner = TensorDictSequential(TensorDictModule(Told(), ["observation"], ["hidden"]))
    head = CategoricalHead("action", n=3, default_interaction_type=InteractionType.RANDOM)
    actor = make_actor(TensorDictSequential(inner), head, num_features=4)
    actor(TensorDict({"observation": torch.zeros(2, 4)}, [2]))
    with set_exploration_type(ExplorationType.MODE):
        actor(TensorDict({"observation": torch.zeros(2, 4)}, [2]))
    assert told == [InteractionType.RANDOM, InteractionType.MODE]


def test_nan_of_a_free_scale_is_named() -> None:
    head = NormalHead("force", free_scale=True)
    with torch.no_grad():
        head.raw_scale.fill_(torch.nan)
    with pytest.raises(ValueError, match="'force_scale': nan in"):
        head(TensorDict({"force_loc": torch.zeros(2, 1)}, [2]))
