"""diagnose names what is wrong with a first batch, and finds nothing where nothing is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.modules import NormalParamExtractor, ProbabilisticActor
from torchrl.modules import TanhNormal as TorchRLTanhNormal

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    Finding,
    KLPENPPOLoss,
    NormalHead,
    diagnose,
    make_actor,
)
from tests.batches import collect, move, with_garbage
from tests.cases import FEATURES, HEADS, LOSSES, HeadCase, LossCase, N, case_ids, critic

all_heads = pytest.mark.parametrize("case", HEADS, ids=case_ids(HEADS))
MASKED = next(case for case in HEADS if case.name == "masked")
HYBRID = HEADS[-1]
B = 11


def batch(case: HeadCase = MASKED, actor: Any = None) -> tuple[Any, TensorDict]:
    actor = case.actor() if actor is None else actor
    return actor, collect(case, actor, [B])


def only(report: Any, check: str) -> Finding:
    """Return the one finding of a check, after looking that the table shows it."""
    assert [f.check for f in report.findings if f.level == "error"] in ([], [check])
    (finding,) = report[check]
    assert finding.found in str(report)
    return finding


@all_heads
@pytest.mark.parametrize("kind", LOSSES, ids=case_ids(LOSSES))
def test_a_sound_set_up_has_no_findings(case: HeadCase, kind: LossCase) -> None:
    actor, td = batch(case)
    report = diagnose(kind.build(actor, critic(), normalize_advantage=True), td)
    assert report.ok
    assert [f for f in report.findings if f.level != "note"] == []
    assert set(report) == {
        "keys", "nan", "mask", "policy", "legal",
        "ratio", "empty", "advantage", "gradient", "forward",
    }  # fmt: skip
    assert str(report).count("ok ") >= 7


def test_nothing_is_changed_by_looking() -> None:
    actor, td = batch()
    loss = KLPENPPOLoss(actor, critic())
    before, kept = {k: v.clone() for k, v in loss.state_dict().items()}, td.clone()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    move(actor)
    before = {k: v.clone() for k, v in loss.state_dict().items()}
    diagnose(loss, td)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in loss.state_dict().items())
    assert all(p.grad is None for p in loss.parameters())
    assert (td == kept).all()


def test_padded_rows_are_left_out() -> None:
    actor, td = batch()
    report = diagnose(ClipPPOLoss(actor, critic()), with_garbage(td, [0, 4], math.nan))
    assert report.ok
    td["collector", "mask"] = torch.zeros(B, 1, dtype=torch.bool)
    finding = only(diagnose(ClipPPOLoss(actor, critic()), td), "empty")
    assert (finding.level, finding.found) == ("error", "no valid row")


# ---- faults, one by one


def test_a_mask_that_moved_on() -> None:
    actor, td = batch()
    action = int(td["action"][3])
    td["action_mask"] = td["action_mask"].clone()
    td["action_mask"][3, action] = False
    td["action_mask"][3, (action + 1) % N] = True
    report = diagnose(ClipPPOLoss(actor, critic()), td)
    finding = report["legal"][0]
    assert finding.key == "action"
    assert f"the action {action} in row 3 (1 of 11) is illegal" in finding.found
    assert "not that of the next step" in finding.todo
    assert set(report.skipped) == {"ratio", "gradient"}
    assert not report.ok


def test_a_policy_that_acted_without_its_mask() -> None:
    actor, td = batch()
    td["action_log_prob"] = (
        td["action_logits"].log_softmax(-1).gather(-1, td["action"].unsqueeze(-1))[:, 0]
    )
    finding = only(diagnose(ClipPPOLoss(actor, critic()), td), "ratio")
    assert finding.key == "action"
    assert "those without the mask" in finding.todo


def test_a_head_that_was_built_without_the_mask() -> None:
    actor, td = batch(next(case for case in HEADS if case.name == "flat"))
    td["action_mask"] = torch.rand(B, N) < 0.5
    finding = only(diagnose(ClipPPOLoss(actor, critic()), td), "mask")
    assert (finding.level, finding.key) == ("warning", "action_mask")
    assert "mask=True" in finding.todo
    td["action_mask"] = torch.ones(B, 2)  # something else of that name
    assert not diagnose(ClipPPOLoss(actor, critic()), td)["mask"]


def test_nan_in_the_advantage() -> None:
    actor, td = batch()
    td["advantage"][3] = math.nan
    finding = only(diagnose(ClipPPOLoss(actor, critic(), normalize_advantage=True), td), "nan")
    assert (finding.key, finding.found) == ("advantage", "nan in row 3 (1 of 11)")


def test_weights_that_moved_since_the_collection() -> None:
    actor, td = batch(HYBRID)
    move(actor[1])  # the projection, all leaves
    report = diagnose(ClipPPOLoss(actor, critic()), td)
    assert [f.key for f in report["ratio"]] == list(actor.dist_sample_keys)
    assert all("the weights, the mask or the observation" in f.todo for f in report["ratio"])


def test_one_leaf_of_several_whose_log_prob_is_off() -> None:
    actor, td = batch(HYBRID)
    td["where_log_prob"] = td["where_log_prob"] - 0.5
    finding = only(diagnose(ClipPPOLoss(actor, critic()), td), "ratio")
    assert finding.key == "where"
    assert "log w is up to 0.5 in rows 0, 1" in finding.found


def test_a_network_with_dropout() -> None:
    body = nn.Sequential(nn.Linear(FEATURES, 64), nn.Dropout(0.5))
    backbone = TensorDictModule(body, ["observation"], ["hidden"])
    actor = make_actor(backbone, CategoricalHead("action", N, mask=True), gain=1.0)
    report = diagnose(ClipPPOLoss(actor, None), batch(actor=actor)[1])
    assert "the network is random" in only(report, "ratio").todo


def test_rounding_is_a_note() -> None:
    actor, td = batch()
    td["action_log_prob"] = td["action_log_prob"] + 1e-6
    report = diagnose(ClipPPOLoss(actor, critic()), td)
    assert report.ok
    assert only(report, "ratio").level == "note"


@pytest.mark.parametrize(
    ("key", "todo"),
    [
        ("action_mask", "has to be stored with the action"),
        ("action", "set_keys"),
        ("action_log_prob", "return_log_prob=True"),
        ("observation", "a network reads it"),
        ("value_target", "run a value estimator"),
    ],
)
def test_a_missing_entry(key: str, todo: str) -> None:
    actor, td = batch()
    report = diagnose(ClipPPOLoss(actor, critic()), td.exclude(key))
    finding = only(report, "keys")
    assert finding.key == key
    assert todo in finding.todo
    assert {"policy", "ratio", "forward"} <= set(report.skipped)
    assert "skipped" in str(report)


def test_a_misspelt_entry_is_recognised() -> None:
    actor, td = batch()
    td.rename_key_("action_mask", "action_masks")
    finding = diagnose(ClipPPOLoss(actor, None), td)["keys"][0]
    assert finding.found == "not in the batch, but action_masks is"


def test_parameters_that_the_kl_penalty_needs() -> None:
    actor, td = batch()
    finding = only(diagnose(KLPENPPOLoss(actor, None), td.exclude("action_logits")), "keys")
    assert finding.key == "action_logits"
    assert "KL" in finding.todo


def test_an_advantage_that_is_neither_there_nor_can_be_computed() -> None:
    actor, td = batch()
    del td["advantage"]
    assert only(diagnose(ClipPPOLoss(actor, None), td), "keys").key == "advantage"
    report = diagnose(ClipPPOLoss(actor, critic()), td)
    assert [f.key for f in report["keys"]] == [("next", "reward"), ("next", "done")]


def test_nan_is_traced_to_its_source() -> None:
    actor, td = batch()
    td["observation"][2, 1] = math.nan
    finding = only(diagnose(ClipPPOLoss(actor, None), td), "nan")
    assert (finding.key, finding.found) == ("observation", "nan in row 2 (1 of 11)")
    actor, td = batch()
    actor[0].module[0].weight.data[0, 0] = math.nan
    finding = only(diagnose(ClipPPOLoss(actor, None), td), "nan")
    assert "nan in 1 weights" in finding.found
    assert "weight" in str(finding.key)


def test_an_observation_that_overflows_in_the_network() -> None:
    torch.manual_seed(0)
    actor, td = batch(next(case for case in HEADS if case.name == "normal"))
    actor[1].module[0].weight.data *= 1e38
    td["observation"] *= 1e38
    report = diagnose(ClipPPOLoss(actor, None), td)
    assert not report.ok
    finding = (report["legal"] or report["ratio"])[0]  # a log-prob of -inf, or of nan
    assert "-inf" in finding.found or "look at the scale of the observation" in finding.todo
    assert report["forward"][0].level == "error"


def test_rows_with_nothing_to_choose_are_counted() -> None:
    head = CompositeHead(
        CategoricalHead("kind", N, mask=True, on_empty="neutral"), NormalHead("force", (2,))
    )
    backbone = TensorDictModule(nn.Linear(FEATURES, 64), ["observation"], ["hidden"])
    actor = make_actor(backbone, head)
    td = HYBRID.inputs([B])
    td["kind_mask"][[1, 5]] = False
    td = actor(td).detach()
    td["advantage"] = torch.randn(B, 1)
    report = diagnose(ClipPPOLoss(actor, None), td)
    assert report.ok
    finding = only(report, "empty")
    assert (finding.key, finding.level) == ("kind", "note")
    assert finding.found == "nothing to choose in rows 1, 5 (2 of 11)"


def test_advantages_of_no_use_and_on_no_scale() -> None:
    actor, td = batch()
    td["advantage"] = torch.full((B, 1), 3.0)
    finding = only(diagnose(ClipPPOLoss(actor, critic()), td), "advantage")
    assert finding.level == "warning"
    assert finding.found == "the same in all rows, 3"
    td["advantage"] = torch.randn(B, 1) * 1e3
    finding = only(diagnose(ClipPPOLoss(actor, critic()), td), "advantage")
    assert "normalize_advantage=True" in finding.todo
    assert not diagnose(ClipPPOLoss(actor, critic(), normalize_advantage=True), td)["advantage"]


def test_a_flat_advantage() -> None:
    actor, td = batch()
    td["advantage"] = td["advantage"].squeeze(-1)
    report = diagnose(ClipPPOLoss(actor, critic()), td)
    assert "'advantage': expected shape [11, 1], got [11]" in report["policy"][0].found
    assert "advantage.unsqueeze(-1)" in report["policy"][0].todo


def test_a_leaf_without_a_gradient() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, N)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).detach()

    nets = [
        TensorDictModule(nn.Linear(FEATURES, 3), ["observation"], ["kind_logits"]),
        TensorDictModule(Detached(), ["observation"], ["item_logits"]),
    ]
    head = CompositeHead(CategoricalHead("kind", 3), CategoricalHead("item", N))
    actor = ProbabilisticTensorDictSequential(*nets, head)
    td = actor(HYBRID.inputs([B])).detach()
    td["advantage"] = torch.randn(B, 1)
    report = diagnose(ClipPPOLoss(actor, None), td)
    warning, note = report["gradient"]
    assert (warning.level, warning.key) == ("warning", "item")
    assert "linear.weight" in note.found


def test_an_action_that_is_no_choice() -> None:
    actor, td = batch()
    td["action"][4] = N
    report = diagnose(ClipPPOLoss(actor, critic()), td)
    assert "choice 7 in row 4" in report["legal"][0].found


def test_an_actor_of_torchrl() -> None:
    net = TensorDictModule(nn.Linear(FEATURES, N), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        net, ["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    td = batch(HYBRID, actor)[1]
    assert diagnose(ClipPPOLoss(actor, None), td).ok
    td["action_log_prob"] = td["action_log_prob"].unsqueeze(-1)
    finding = diagnose(ClipPPOLoss(actor, None), td)["ratio"][0]
    assert finding.found == "'action_log_prob': expected shape [11], got [11, 1]"


def test_the_table_reads_like_one() -> None:
    actor, td = batch()
    td["action_log_prob"] = td["action_log_prob"] - 1
    lines = str(diagnose(ClipPPOLoss(actor, critic()), td)).splitlines()
    assert lines[0].split() == ["ok", "keys"]
    line = next(line for line in lines if line.startswith("error"))
    assert line.startswith("error    ratio      'action': log w is up to 1 in rows 0, 1, 2, 3, 4")


# ---- sound set-ups that do not look like the others


@pytest.mark.parametrize("kind", [torch.distributions.Normal, TorchRLTanhNormal])
def test_open_event_dims_of_another_library(kind: Any) -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 4), NormalParamExtractor())
    module = TensorDictModule(net, ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(
        module, ["loc", "scale"], distribution_class=kind, return_log_prob=True,
        default_interaction_type="random",
    )  # fmt: skip
    td = batch(HYBRID, actor)[1]
    report = diagnose(ClipPPOLoss(actor, None), td)
    assert report.ok, report
    assert not report["ratio"] or report["ratio"][0].level == "note"


def test_an_advantage_that_the_loss_computes() -> None:
    actor, td = batch()
    td = td.exclude("advantage", "value_target", "state_value")
    td["next", "observation"] = td["observation"].roll(1, 0)
    td["next", "reward"], td["next", "done"] = torch.randn(B, 1), torch.zeros(B, 1).bool()
    td["next", "terminated"] = td["next", "done"].clone()
    report = diagnose(ClipPPOLoss(actor, critic()), td.unsqueeze(0))
    assert report.ok, report
    assert not report.skipped


def test_a_network_that_reads_a_nested_tensordict() -> None:
    net = TensorDictModule(
        lambda state: state["x"].sum(-1, keepdim=True), ["state"], ["state_value"]
    )
    actor, td = batch()
    td["state"] = TensorDict({"x": torch.randn(B, 3)}, [B])
    assert diagnose(ClipPPOLoss(actor, net), td).ok


def test_nan_in_an_entry_that_nothing_reads() -> None:
    actor, td = batch()
    td["info"] = torch.full((B, 1), math.nan)
    td["next", "observation"] = torch.full((B, FEATURES), math.nan)
    assert diagnose(ClipPPOLoss(actor, critic()), td).ok


# ---- faults that had got away


def test_a_log_prob_that_was_stored_with_its_graph() -> None:
    actor = MASKED.actor()
    td = actor(MASKED.inputs([B]))
    td["advantage"] = torch.randn(B, 1)
    report = diagnose(ClipPPOLoss(actor, None), td)
    assert not report.ok
    assert "requires grad" in report["ratio"][0].found


def test_a_constant_advantage_of_a_team() -> None:
    body = TensorDictModule(nn.Linear(4, 64), [("a", "observation")], [("a", "hidden")])
    actor = make_actor(body, CategoricalHead(("a", "action"), 3), in_key=("a", "hidden"))
    td = TensorDict({"a": TensorDict({"observation": torch.randn(B, 5, 4)}, [B, 5])}, [B])
    td = actor(td).detach()
    td["advantage"] = torch.zeros(B, 1)
    finding = only(diagnose(ClipPPOLoss(actor, None), td), "advantage")
    assert finding.found == "the same in all rows, 0"


def test_an_observation_of_the_wrong_width_and_a_missing_validity_mask() -> None:
    actor, td = batch()
    td["observation"] = torch.randn(B, FEATURES + 1)
    assert "mat1 and mat2" in str(diagnose(ClipPPOLoss(actor, None), td)["policy"][0])
    actor, td = batch()
    loss = ClipPPOLoss(actor, critic())
    loss.loss_mask_key = "nope"
    finding = only(diagnose(loss, td), "keys")
    assert finding.key == "nope"
    td["nope"] = torch.ones(B + 1, dtype=torch.bool).unsqueeze(0).expand(B, B + 1)
    assert not diagnose(loss, td).ok
