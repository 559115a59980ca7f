"""A head or a loss looks once at all of its leaves: it finds what each look on its own would."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torchrl.modules import recurrent_mode

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    MaskedCategorical,
    MultiCategoricalHead,
    NormalHead,
    TanhNormalHead,
    make_actor,
)
from tdheads.checks import any_nan
from tdheads.distributions.draw import score_draw
from tdheads.heads.normal import BoxNormalHead
from tdheads.looks import Looks, look
from tests.syncs import CountSyncs

NAN, INF = float("nan"), float("inf")
B = 4

#: what goes wrong: entry, where, value, what the error says
FAULTS = {
    "legal logit": ("kind_logits", (1, 0), NAN, "'kind_logits': nan in row 1"),
    "illegal logit": ("kind_logits", (1, 2), NAN, "'kind_logits': nan in row 1"),
    "infinite logit": ("kind_logits", (2, 0), INF, "'kind_logits': no finite distribution in row"),
    "empty row": ("kind_mask", (3,), False, "'kind_mask': no legal choice in row 3"),
    "other logit": ("unit_logits", (0, 4), NAN, "'unit_logits': .*nan in row"),
    "loc": ("force_loc", (2, 1), NAN, "'force_loc': nan in row 2"),
    "scale": ("force_scale", (2, 1), NAN, "'force_scale': nan in row 2"),
    "negative scale": ("lift_scale", (1, 0), -1.0, "'lift_.*: expected positive numbers"),
    "scale of zero": ("lift_scale", (1, 0), 0.0, "'lift_.*: expected positive numbers"),
}
all_faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


def make_head(**options: Any) -> CompositeHead:
    plain = {"scale_mapping": "none", "scale_lb": 0.0}
    return CompositeHead(
        CategoricalHead("kind", n=3, mask=True, **options),
        MultiCategoricalHead("unit", nvec=[2, 3], **options),
        NormalHead("force", shape=(2,), **options),
        TanhNormalHead("lift", shape=(1,), **plain, **options),
    )


def batch() -> TensorDict:
    return TensorDict(
        {
            "kind_logits": torch.zeros(B, 3),
            "kind_mask": torch.tensor([True, True, False]).repeat(B, 1),
            "unit_logits": torch.zeros(B, 5),
            "force_loc": torch.zeros(B, 2),
            "force_scale": torch.zeros(B, 2),
            "lift_loc": torch.zeros(B, 1),
            "lift_scale": torch.ones(B, 1),
        },
        [B],
    )


def spoilt(td: TensorDict, fault: tuple[str, Any, Any, str]) -> TensorDict:
    key, where, value, _ = fault
    td[key][where] = value
    return td


@all_faults
def test_acting_finds_every_fault_and_writes_nothing(fault: Any) -> None:
    td = spoilt(batch(), fault)
    before = set(td.keys())
    with pytest.raises(ValueError, match=fault[3]):
        make_head()(td)
    assert set(td.keys()) == before


@all_faults
@pytest.mark.parametrize("whole", [False, True], ids=["apart", "views"])
def test_a_loss_finds_every_fault(fault: Any, whole: bool) -> None:
    """Also if the parameters are views of one tensor, which is looked at as a whole."""
    head = make_head()
    td = head(batch()).detach()
    td["advantage"] = torch.ones(B, 1)
    keys = [key for key in batch().keys() if key != "kind_mask"]
    spoilt(td, fault)
    raw = torch.cat([td[key] for key in keys], -1).requires_grad_()
    sizes = [td[key].shape[-1] for key in keys]

    def network(_: Any) -> tuple[torch.Tensor, ...]:
        parts = raw.split(sizes, -1)
        return parts if whole else tuple(part.clone() for part in parts)

    td["observation"] = torch.zeros(B, 1)
    backbone = TensorDictModule(network, ["observation"], keys)
    loss = ClipPPOLoss(ProbabilisticTensorDictSequential(backbone, head))
    with pytest.raises(ValueError, match=fault[3]):
        loss(td)


@all_faults
def test_nothing_is_looked_at_with_validation_off(fault: Any) -> None:
    head, td = make_head(validate=False), spoilt(batch(), fault)
    with CountSyncs() as counted:
        head(td)
    assert counted.found == {}


def test_one_leaf_of_several_is_looked_at_if_it_asks_for_it() -> None:
    head = CompositeHead(
        CategoricalHead("kind", n=3, mask=True),
        NormalHead("force", shape=(2,), validate=False),
    )
    head(spoilt(batch(), FAULTS["loc"]))
    with pytest.raises(ValueError, match="kind_logits"):
        head(spoilt(batch(), FAULTS["illegal logit"]))


def test_without_log_probs_every_leaf_is_looked_at_on_its_own() -> None:
    head = CategoricalHead("kind", n=3, mask=True, return_log_prob=False)
    with pytest.raises(ValueError, match="no legal choice in row 3"):
        head(spoilt(batch(), FAULTS["empty row"]))


def test_an_irrelevant_leaf_is_looked_at_in_a_loss() -> None:
    """Its nan does not reach the joint log-prob."""
    head = CompositeHead(
        CategoricalHead("kind", n=3), NormalHead("force", shape=(2,), when={"kind": [1]})
    )
    actor = make_actor(
        TensorDictModule(nn.Linear(2, 8), ["observation"], ["hidden"]), head, num_features=8
    )
    td = actor(TensorDict({"observation": torch.zeros(B, 2)}, [B])).detach()
    td["kind"], td["advantage"] = torch.zeros(B, dtype=torch.int64), torch.ones(B, 1)
    with torch.no_grad():
        actor[1].module[0].bias[3] = NAN  # the first loc
    with pytest.raises(ValueError, match="force_loc"):
        ClipPPOLoss(actor)(td)


def test_infinite_logits_of_what_is_impossible_are_no_fault() -> None:
    """Their sum is not finite, so that each look is taken on its own, and finds nothing."""
    td = batch()
    td["kind_logits"][:, 1] = -INF
    assert make_head()(td)["kind"].eq(0).all()


def test_the_steps_between_raise_what_the_looks_would() -> None:
    def fail() -> None:
        raise ValueError("look at the network")

    def draw() -> None:
        with Looks():
            look(fail, torch.tensor(NAN))
            raise RuntimeError("an error deep inside")

    with pytest.raises(ValueError, match="look at the network"):
        draw()


@pytest.mark.parametrize(
    "take", [Looks.explain, Looks.take, lambda looks: looks.settle(torch.ones(1))]
)
def test_looks_that_find_nothing_say_nothing(take: Callable[[Looks], Any]) -> None:
    taken = []
    with Looks() as looks:
        look(lambda: taken.append("explained"), torch.ones(3), implied=lambda: torch.ones(1))
    take(looks)
    assert taken == (["explained"] if take is Looks.explain else [])
    assert not any_nan(torch.ones(3))


def test_a_part_of_a_large_tensor_is_looked_at_alone() -> None:
    """The rest may be a buffer of rows that nobody asked for."""
    storage = torch.full((100, 3), NAN)
    storage[7] = 0
    head = CategoricalHead("kind", n=3)
    assert head(TensorDict({"kind_logits": storage[7:8]}, [1]))["kind"].tolist() == [0]


@pytest.mark.parametrize("name", ["acting", "loss"])
def test_a_hybrid_is_looked_at_once(name: str) -> None:
    head = CompositeHead(CategoricalHead("kind", n=3, mask=True), NormalHead("force", shape=(2,)))
    td = head(batch()).detach()
    td["advantage"] = torch.ones(B, 1)
    loss = ClipPPOLoss(head)
    with CountSyncs() as counted:
        head(td) if name == "acting" else loss(td)
    # on the CPU: elsewhere a loss asks whether the stored choices are some, once for each leaf
    assert counted.found == {"_local_scalar_dense": 1}


def test_views_of_a_complex_tensor_are_looked_at_as_they_are() -> None:
    pair = torch.view_as_real(torch.randn(B, 2, dtype=torch.complex64))
    td = TensorDict({"force_loc": pair[..., 0], "force_scale": pair[..., 1]}, [B])
    assert NormalHead("force", shape=(2,))(td)["force"].isfinite().all()
    pair[2, 0, 1] = NAN
    with pytest.raises(ValueError, match="'force_scale': nan in row 2"):
        NormalHead("force", shape=(2,))(td)


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_a_scale_of_an_entry_that_is_fixed_is_looked_at(scale: float) -> None:
    """Which the log-prob does not depend on."""
    low, high = torch.tensor([-1.0, 0.5]), torch.tensor([1.0, 0.5])
    head = TanhNormalHead("a", low, high, (2,), scale_mapping="none", scale_lb=0.0)
    scales = torch.tensor([1.0, scale]).repeat(B, 1)
    with pytest.raises(ValueError, match="expected positive numbers"):
        head(TensorDict({"a_loc": torch.zeros(B, 2), "a_scale": scales}, [B]))


def loss_around(inner: Callable[[], Any]) -> Any:
    """The loss of an actor whose network calls ``inner``."""

    def network(_: Any) -> torch.Tensor:
        inner()
        return torch.zeros(B, 3)

    backbone = TensorDictModule(network, ["observation"], ["kind_logits"])
    actor = ProbabilisticTensorDictSequential(backbone, CategoricalHead("kind", n=3))
    entries = {"observation": torch.zeros(B, 1), "kind": torch.zeros(B, dtype=torch.int64)}
    td = TensorDict({**entries, "kind_log_prob": torch.zeros(B)}, [B])
    td["advantage"] = torch.ones(B, 1)
    return ClipPPOLoss(actor)(td)["loss_objective"]


def test_what_a_network_looks_at_is_its_own_affair() -> None:
    empty = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="no legal choice"):
        loss_around(lambda: MaskedCategorical(torch.zeros(2, 3), empty))

    def caught() -> None:
        with contextlib.suppress(ValueError):
            MaskedCategorical(torch.full((2, 3), NAN))

    assert loss_around(caught).isfinite()


def test_a_parameter_is_blamed_before_the_action_that_comes_of_it() -> None:
    head = BoxNormalHead("a", -1.0, 1.0, (2,))
    loc, scale = torch.zeros(B, 2), torch.zeros(B, 2)
    network = TensorDictModule(lambda _: (loc, scale), ["observation"], ["a_loc", "a_scale"])
    actor = ProbabilisticTensorDictSequential(network, head)
    td = actor(TensorDict({"observation": torch.zeros(B, 1), "advantage": torch.ones(B, 1)}, [B]))
    # the row does not count: an action takes the place of what it holds
    td["collector", "mask"] = torch.arange(B).unsqueeze(-1) != 1
    loc[1, 0] = NAN
    for run in (lambda: actor(td.clone()), lambda: ClipPPOLoss(actor)(td)):
        with pytest.raises(ValueError, match="'a_loc': nan in row 1"):
            run()


def test_overrides_are_called() -> None:
    """Where a shorter way does the same as what they override."""
    called = []

    class OwnHead(CompositeHead):
        def get_dist(self, tensordict: Any) -> Any:
            called.append("get_dist")
            return super().get_dist(tensordict)

    class OwnForward:
        def forward(self, tensordict: Any) -> Any:
            called.append(recurrent_mode())
            return super().forward(tensordict)

    class OwnLoss(OwnForward, ClipPPOLoss):
        def loss_critic(self, tensordict: Any, valid: Any = None) -> Any:
            called.append("loss_critic")
            return super().loss_critic(tensordict, valid)

    head = OwnHead(CategoricalHead("kind", n=3), NormalHead("force", shape=(2,)))
    td = head(batch())
    assert called == ["get_dist"]
    td["advantage"] = td["value_target"] = torch.ones(B, 1)
    td["observation"] = torch.zeros(B, 2)
    value = TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])
    OwnLoss(head, value)(td)
    assert called == ["get_dist", True, "get_dist", "loss_critic"]


def test_a_log_prob_that_wraps_another_is_the_one_that_is_written() -> None:
    class Doubled(MaskedCategorical):
        @functools.wraps(MaskedCategorical.log_prob)
        def log_prob(self, value: Any) -> Any:
            return 2 * super().log_prob(value)

    dist = Doubled(torch.zeros(B, 3))
    assert torch.equal(score_draw(dist, dist.mode), dist.log_prob(dist.mode))


def test_a_module_that_was_put_into_a_projection_runs() -> None:
    layer = CategoricalHead("a", n=3).projection(4)
    layer.module.insert(0, nn.Tanh())
    found = layer(TensorDict({"hidden": torch.ones(2, 4)}, [2]))["a_logits"]
    assert torch.equal(found, layer.module[1](torch.ones(2, 4).tanh()))
