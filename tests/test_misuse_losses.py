"""Ways to use a loss wrongly, and the message that each of them deserves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import GAE

from tdheads import ClipPPOLoss, KLPENPPOLoss, PolicyLoss, PPOLoss, SPOLoss
from tests.cases import HEADS, critic

Row = tuple[dict[str, Any], type[Exception], str]
NAN, INF = float("nan"), float("inf")
CASES = {case.name: case for case in HEADS}
MASKED, HYBRID = CASES["masked"], CASES["hybrid"]
ACTOR, CRITIC, JOINT = MASKED.actor(), critic(), HYBRID.actor()
LEAVES = list(JOINT[-1].dist_sample_keys)
KEY = "expected a string or a tuple of strings, got"


def flags(*names: str) -> dict[str, Row]:
    return {n: ({n: "no"}, TypeError, f"{n}: expected True or False, got 'no'") for n in names}


def numbers(name: str, kind: str, *outside: Any) -> dict[str, Row]:
    """Numbers outside of the range of ``name``, and what is no number."""
    table = {
        f"{name}={value!r}": ({name: value}, ValueError, rf"{name}: .* {kind}, got {value}")
        for value in (*outside, NAN)
    }
    for value in ("a", [0.1], True):
        message = rf"{name}: expected a number {kind}, got {str(value)[:3]}".replace("[", r"\[")
        table[f"{name}={value!r}"] = {name: value}, TypeError, message.replace("got a", "got 'a'")
    return table


#: the keywords that all losses share
SHARED: dict[str, Row] = {
    "no actor": ({"actor_network": None}, TypeError, "actor_network: .* get_dist, got NoneType; "),
    "plain actor": ({"actor_network": nn.Linear(2, 2)}, TypeError, "actor_network: .*got Linear;"),
    "plain critic": ({"critic_network": nn.Linear(2, 2)}, TypeError,
        "critic_network: expected a TensorDictModule, got a Linear; wrap it: TensorDictModule"),
    "coeff for no leaf": ({"entropy_coeff": {"acton": 1.0}}, ValueError,
        r"entropy_coeff: expected one coefficient for each of the leaves \['action'\], got"),
    "coeff by number": ({"entropy_coeff": {3: 1.0}}, TypeError, f"entropy_coeff: {KEY} 3"),
    "coeff text": ({"entropy_coeff": {"action": "a"}}, TypeError, "entropy_coeff: .* got 'a'"),
    "coeff nan": ({"entropy_coeff": NAN}, ValueError, "entropy_coeff: .*finite, got nan"),
    "samples": ({"samples_mc_entropy": 0}, ValueError, "samples_mc_entropy: .* >= 1, got 0"),
    "critic type": ({"loss_critic_type": "huber"}, ValueError, "loss_critic_type: .* got 'huber'"),
    "reduction": ({"reduction": "average"}, ValueError, "reduction: .* got 'average'"),
    "aggregate": ({"aggregate": "mean"}, ValueError, r"aggregate: .*\('sum', 'none'\), got 'mean'"),
    "dims": ({"normalize_advantage_exclude_dims": 0}, TypeError,
        r"normalize_advantage_exclude_dims: expected a tuple of dims, e.g. \(-2,\), got 0"),
    "advantage_norm": ({"advantage_norm": True}, TypeError,
        "advantage_norm: expected a ValueNorm .*, got True"),
    "value_norm": ({"value_norm": 0.5}, TypeError, "value_norm: expected a ValueNorm .*, got 0.5"),
    "delay": ({"delay_actor": True, "functional": False}, ValueError,
        "delay_actor=True needs functional=True"),
    "misspelt": ({"entropy_coef": 0.1}, TypeError,
        "Loss: unknown keyword 'entropy_coef'; did you mean 'entropy_coeff'"),
    "gamma": ({"gamma": 0.9}, TypeError, "unknown keyword 'gamma'; .* loss.make_value_estimator"),
    "key": ({"advantage_key": "a"}, TypeError, r"'advantage_key'; loss.set_keys\(advantage=...\)"),
    **flags("entropy_bonus", "log_explained_variance", "normalize_advantage", "separate_losses"),
    **flags("functional", "delay_actor"),
    **numbers("critic_coeff", ">= 0", -1.0),
    **numbers("clip_value", ">= 0", -1.0),
    **numbers("max_importance_ratio", "> 0", 0, -1.0),
}  # fmt: skip
SHARED.pop("clip_value=True")  # of ClipPPOLoss: by its epsilon
OWN: dict[type[PolicyLoss], dict[str, Row]] = {
    PPOLoss: {
        "epsilon": ({"clip_epsilon": 0.1}, TypeError, "PPOLoss: unknown keyword 'clip_epsilon'; "),
    },
    ClipPPOLoss: {
        f"clip_epsilon={value!r}": ({"clip_epsilon": value}, error, f"clip_epsilon: .*{found}")
        for value, error, found in (
            (1.5, ValueError, "the low one must be < 1, got 1.5"),
            (-0.1, ValueError, "expected non-negative numbers, .*got -0.1"),
            ((0.1, -0.2), ValueError, "expected non-negative numbers, .*got 0.1, -0.2"),
            ((1.0, 0.2), ValueError, "the low one must be < 1, got 1.0, 0.2"),
            ((0.1,), ValueError, r"expected a number or length 2, got \(0.1,\)"),
            ((0.1, 0.2, 0.3), ValueError, "expected a number or length 2, got"),
            (NAN, ValueError, "expected a number .* got nan"),
            ("a", TypeError, "expected a number .* got 'a'"),
            (None, TypeError, "expected a number .* got None"),
            ((None, 0.2), TypeError, "expected a number .* got None"),
            (True, TypeError, "expected a number .* got True"),
            (torch.tensor([0.1, 0.2]), TypeError, "expected a number .* got tensor"),
        )
    } | {
        "clip_value": ({"clip_value": True, "clip_epsilon": (0.1, 0.2)}, ValueError,
            r"clip_value=True: expected one clip_epsilon, got \(0.1, 0.2\)"),
        "clip_range": ({"clip_range": 0.1}, TypeError, "'clip_range'; it is clip_epsilon here"),
        "vf_coef": ({"vf_coef": 0.5}, TypeError, "'vf_coef'; it is critic_coeff here"),
        "clip_eps": ({"clip_eps": 0.1}, TypeError, r"'clip_eps'; did you mean 'clip_epsilon'"),
    },
    KLPENPPOLoss: {
        **numbers("dtarg", "> 0", 0, -1.0),
        **numbers("beta", ">= 0", -1.0),
        **numbers("increment", ">= 1", 0.5),
        **numbers("decrement", "above 0, at most 1", 0, 2),
        **flags("adapt_beta"),
        "samples": ({"samples_mc_kl": 0}, ValueError, "samples_mc_kl: .* >= 1, got 0"),
        "clip_param": ({"clip_param": 0.1}, TypeError, "does not clip the ratio, ClipPPOLoss does"),
        "bta": ({"bta": 1.0}, TypeError, r"KLPENPPOLoss: .*'bta'; did you mean 'beta'\?"),
    },
    SPOLoss: {
        **numbers("epsilon", "> 0", 0, -1.0, INF),
        "none": ({"epsilon": None}, TypeError, "epsilon: expected a number .* got None"),
        "clip_coef": ({"clip_coef": 0.1}, TypeError, "'clip_coef'; it is epsilon here"),
        "clip_epsilon": ({"clip_epsilon": 0.1}, TypeError, r"SPOLoss: .* did you mean 'epsilon'\?"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("loss", OWN)
def test_a_shared_keyword(loss: type[PolicyLoss], name: str) -> None:
    given, error, message = SHARED[name]
    with pytest.raises(error, match=message):
        loss(**{"actor_network": ACTOR, "critic_network": CRITIC, **given})


@pytest.mark.parametrize(
    ("loss", "name"), [(loss, name) for loss, table in OWN.items() for name in table]
)
def test_a_keyword_of_one_loss(loss: type[PolicyLoss], name: str) -> None:
    given, error, message = OWN[loss][name]
    with pytest.raises(error, match=message):
        loss(ACTOR, CRITIC, **given)


# ---- set_keys, make_value_estimator, assignment

ONE = r"expected one key, got \['a'\]; a loss has one reward and one done"
SET_KEYS: dict[str, Row] = {
    "misspelt": ({"acton": "a"}, ValueError, r"set_keys: .* 'acton'; did you mean 'action'\?"),
    "log-prob": ({"log_prob": "a"}, ValueError, r"'log_prob'; did you mean 'sample_log_prob'\?"),
    "unknown": ({"priority": "p"}, ValueError, "'priority'; expected one of advantage, val"),
    **{name: ({name: ["a"]}, ValueError, f"{name}: {ONE}") for name in
       ("reward", "done", "terminated", "advantage", "value", "value_target")},
    "no leaf": ({"action": []}, ValueError, r"action: expected at least one key, .* got \[\]; "),
    "leaf twice": ({"action": ["a", "a"]}, ValueError, r"action: .*each once, got \['a', 'a'\]"),
    "number": ({"reward": 3}, TypeError, f"reward: {KEY} 3"),
    "part": ({"reward": ("a", 1)}, TypeError, rf"reward: {KEY} \('a', 1\)"),
    "leaf": ({"action": [3]}, TypeError, f"action: {KEY} 3"),
    "set": ({"sample_log_prob": {"a"}}, TypeError, f"sample_log_prob: {KEY} {{'a'}}"),
}  # fmt: skip


@pytest.mark.parametrize("name", SET_KEYS)
def test_set_keys(name: str) -> None:
    keys, error, message = SET_KEYS[name]
    with pytest.raises(error, match=message):
        ClipPPOLoss(ACTOR, CRITIC).set_keys(**keys)


G = ValueEstimators.GAE
ESTIMATORS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "number": (3, {}, TypeError, "value_type: expected one of ValueEstimators.*, got 3"),
    "module": (nn.Linear(2, 2), {}, TypeError, "value_type: expected .* got Linear"),
    "function": (len, {}, TypeError, "value_type: expected .* got <built-in function"),
    "alias": ("gea", {}, KeyError, r"no estimator 'gea'; did you mean 'gae'\?"),
    "misspelt": (G, {"gama": 0.9}, TypeError, r"GAE has no keyword 'gama'; did you mean 'gamma'\?"),
    "by name": ("gae", {"gama": 0.9}, TypeError, r"no keyword 'gama'; did you mean 'gamma'\?"),
    "default": (None, {"lambda_": 0.9}, TypeError, r"no keyword 'lambda_'; did you mean 'lmbda'"),
    "of another": (ValueEstimators.TD0, {"lmbda": 0.9}, TypeError, "TD0Est.* no keyword 'lmbda'"),
    "gamma": (G, {"gamma": 2.0}, ValueError, r"gamma: expected a number from 0 to 1, got 2.0"),
    "gamma nan": (G, {"gamma": NAN}, ValueError, r"gamma: .* from 0 to 1, got nan"),
    "gamma text": (G, {"gamma": "a"}, TypeError, r"gamma: expected a number .*, got 'a'"),
    "lmbda": (G, {"lmbda": -1.0}, ValueError, r"lmbda: expected a number from 0 to 1, got -1.0"),
    "finished": (GAE(gamma=0.9, lmbda=0.9, value_network=CRITIC), {"gamma": 0.5}, TypeError,
        r"no keywords beside a finished GAE, got \['gamma'\]; give them to its constructor"),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_make_value_estimator(name: str) -> None:
    kind, options, error, message = ESTIMATORS[name]
    with pytest.raises(error, match=message):
        ClipPPOLoss(ACTOR, CRITIC).make_value_estimator(kind, **options)


ASSIGNED: dict[str, tuple[type[PolicyLoss], dict[str, Row]]] = {
    "shared": (PPOLoss, {
        **numbers("critic_coeff", ">= 0", -1.0),
        **numbers("max_importance_ratio", "> 0", 0),
        **numbers("clip_value", ">= 0", -0.1),
        **numbers("entropy_coeff", "that is finite", INF),
        "clip_value=True": ({"clip_value": True}, ValueError,
            "clip_value must be a float or a scalar tensor, got True"),  # in TorchRL's words
        "none": ({"entropy_coeff": None}, TypeError, "entropy_coeff: .* got None"),
        "mapping": ({"entropy_coeff": {"action": 1.0}}, ValueError, "this loss has one"),
        "shape": ({"entropy_coeff": torch.ones(2)}, ValueError,
            r"'entropy_coeff': expected shape \[\], got \[2\]; as this loss was built"),
        "misspelt": ({"entropy_coef": 0.1}, AttributeError,
            "PPOLoss: no coefficient 'entropy_coef'; did you mean 'entropy_coeff'"),
        "of others": ({"beta": 0.1}, AttributeError, "PPOLoss: no coefficient 'beta'; expected"),
        "reduction": ({"reduction": "average"}, ValueError, "reduction: .* got 'average'"),
        "aggregate": ({"aggregate": "mean"}, ValueError, "aggregate: .* got 'mean'"),
        "mask key": ({"loss_mask_key": 3}, ValueError, "loss_mask_key must be .* got 3"),
    }),
    "clip": (ClipPPOLoss, {
        **numbers("clip_epsilon", "from 0 to below 1", -0.1, 1.5),
        "pair": ({"clip_epsilon": (0.1, 0.2)}, TypeError, r"clip_epsilon: .* got \(0.1, 0.2\)"),
        "low": ({"clip_epsilon_low": 0.1}, AttributeError, "this loss is symmetric; set clip_ep"),
        "misspelt": ({"clip_eps": 0.1}, AttributeError, "'clip_eps'; did you mean 'clip_epsilon'"),
        "spo": ({"epsilon": 0.1}, AttributeError, r"'epsilon'; did you mean 'clip_epsilon'\?"),
    }),
    "kl": (KLPENPPOLoss, {
        **numbers("beta", ">= 0", -1.0),
        **numbers("dtarg", "> 0", 0),
        **numbers("increment", ">= 1", 0.5),
        **numbers("decrement", "above 0, at most 1", 2),
        "misspelt": ({"bta": 0.1}, AttributeError, r"'bta'; did you mean 'beta'\?"),
    }),
    "spo": (SPOLoss, {
        **numbers("epsilon", "> 0", 0, -1.0, INF),
        "none": ({"epsilon": None}, TypeError, "epsilon: .* got None"),
        "misspelt": ({"epsilom": 0.1}, AttributeError, r"'epsilom'; did you mean 'epsilon'\?"),
        "clip": ({"clip_epsilon": 0.1}, AttributeError, "'clip_epsilon'; did you mean 'epsilon'"),
    }),
}  # fmt: skip


@pytest.mark.parametrize(
    ("which", "name"), [(which, name) for which, (_, rows) in ASSIGNED.items() for name in rows]
)
def test_assignment(which: str, name: str) -> None:
    kind, table = ASSIGNED[which]
    loss = kind(ACTOR, CRITIC, clip_value=0.1, max_importance_ratio=3.0)
    ((attribute, value),), error, message = table[name][0].items(), *table[name][1:]
    with pytest.raises(error, match=message):
        setattr(loss, attribute, value)


BY_LEAF: dict[str, tuple[Any, type[Exception], str]] = {
    "misspelt": ({"knd": 0.1}, ValueError, r"for each of the leaves \['kind', .*got {'knd': 0.1}"),
    "nothing": ({}, ValueError, "for each of the leaves .* got {}"),
    "text": ({"kind": "a"}, TypeError, "entropy_coeff: expected a number .* got 'a'"),
    "nan": ({"kind": NAN}, ValueError, "entropy_coeff: expected a number .* got nan"),
    "key": ({3: 0.1}, TypeError, f"entropy_coeff: {KEY} 3"),
    "shape": (torch.tensor(0.1), ValueError, r"'entropy_coeff': expected shape \[4\], got \[\]"),
}


@pytest.mark.parametrize("name", BY_LEAF)
def test_assignment_of_coefficients_by_leaf(name: str) -> None:
    value, error, message = BY_LEAF[name]
    loss = ClipPPOLoss(JOINT, CRITIC, entropy_coeff=dict.fromkeys(LEAVES, 0.1))
    with pytest.raises(error, match=message):
        loss.entropy_coeff = value


def test_a_coefficient_that_was_off_can_be_set_and_one_without_a_critic_cannot() -> None:
    loss = ClipPPOLoss(ACTOR)
    for name, value in {"clip_value": 0.5, "max_importance_ratio": 2.0}.items():
        setattr(loss, name, value)
        assert getattr(loss, name) == torch.tensor(value)
        assert name in loss.state_dict()
        setattr(loss, name, None)
        setattr(loss, name, value)
        assert getattr(loss, name) == torch.tensor(value)
    with pytest.raises(ValueError, match=r"critic_coeff: this loss has no critic, got 0\.5; build"):
        loss.critic_coeff = 0.5


def test_a_loss_may_have_attributes_of_any_other_name() -> None:
    loss = ClipPPOLoss(ACTOR)
    loss.step, loss.name = 3, "first"
    assert (loss.step, loss.name) == (3, "first")
