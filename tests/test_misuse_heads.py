"""Ways to build a head wrongly, and the message that each of them deserves.

A row is what is given, the class of the exception and a regular expression of its message, which
names the key or the keyword, what was found and what to do.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from tdheads import (
    BernoulliHead,
    BetaHead,
    BoxNormalHead,
    CategoricalHead,
    CompositeHead,
    MultiCategoricalHead,
    MultiOneHotHead,
    NormalHead,
    OneHotCategoricalHead,
    SequenceHead,
    SparseCategoricalHead,
    TanhNormalHead,
)

Row = tuple[dict[str, Any], type[Exception], str]
NAN, INF = float("nan"), float("inf")
NET = TensorDictModule(nn.Linear(2, 2), ["x"], ["y"])
KEY = "expected a string or a tuple of strings, got"

#: what every head with one leaf has in common
LEAF: dict[str, Row] = {
    "key": ({"action_key": ["f"]}, TypeError, rf"action_key: {KEY} \['f'\]"),
    "part of a key": ({"action_key": ("f", 1)}, TypeError, rf"action_key: {KEY} \('f', 1\)"),
    "validate": ({"validate": "no"}, TypeError, "validate: expected True or False, got 'no'"),
    "flag": ({"return_log_prob": 2}, TypeError, "return_log_prob: expected True or False, got 2"),
    "dtype": ({"dtype": "int64"}, TypeError, "dtype: expected a torch.dtype, got 'int64'"),
    "generator": ({"generator": 3}, TypeError, "generator: expected a torch.Generator, got 3"),
    "interaction": ({"default_interaction_type": "greedy"}, ValueError,
        "default_interaction_type: expected one of .*'mode'.*, got 'greedy'"),
    "misspelt": ({"return_log_probs": True}, TypeError,
        r"Head: unknown keyword 'return_log_probs'; did you mean 'return_log_prob'\?"),
    "in_keys": ({"in_keys": ["x"]}, TypeError,
        "Head: unknown keyword 'in_keys'; a head's keys follow from its action_key"),
    "class": ({"distribution_class": int}, TypeError, "unknown keyword 'distribution_class'; a he"),
    "when": ({"when": "kind"}, TypeError, "'f': when maps parents to choices, got 'kind'"),
    "when never": ({"when": {"kind": []}}, ValueError, r"'f': when={'kind': \[\]} is never true"),
    "when half": ({"when": {"kind": 1.5}}, TypeError, "'f': when={'kind': 1.5}: .* as integers"),
    "after": ({"after": "kind"}, TypeError, "'f': after is a tuple of leaves, got 'kind'"),
    "after what": ({"after": 3}, TypeError, "'f': after is a tuple of leaves, got 3"),
    "mask_given": ({"mask_given": True}, TypeError, f"mask_given: {KEY} True"),
    "enumerate": ({"enumerate_parents": True}, ValueError, "'f': enumerate_parents is for leaves"),
    "parameters": ({"parameters": nn.Linear(2, 2)}, TypeError,
        "parameters: expected a TensorDictModule, got Linear"),
    "parameters unused": ({"parameters": NET}, ValueError, "parameters: expected after= beside it"),
    "parameters of others": ({"parameters": NET, "after": ["kind"]}, ValueError,
        r"parameters: expected a module that writes \['f_.*got out_keys=\['y'\]; rename"),
}  # fmt: skip
MASKED: dict[str, Row] = {
    "mask": ({"mask": torch.ones(3)}, TypeError, f"mask: {KEY} tensor"),
    "mask key": ({"mask": ["m"]}, TypeError, rf"mask: {KEY} \['m'\]"),
    "mask over logits": ({"mask": "f_logits"}, ValueError, "'f': .* got 'f_logits' twice; rename"),
}
CHOICE: dict[str, Row] = {
    "on_empty": ({"on_empty": "neutrl"}, ValueError,
        r"on_empty: expected one of \('error', 'neutral'\), got 'neutrl'"),
    "logits": ({"logits": 3}, TypeError, f"logits: {KEY} 3"),
    "logits over action": ({"logits": "f"}, ValueError, "'f': .* got 'f' twice; rename one"),
    "start": ({"start": "one"}, TypeError, "'f': expected integers to start from, got start='one'"),
}  # fmt: skip
UNSHIFTED: dict[str, Row] = {
    "no start": ({"start": 1}, ValueError, "'f': a .*Head takes no start and no allowed"),
}
SHIFTED: dict[str, Row] = {
    "allowed": ({"allowed": [True]}, TypeError, r"allowed: expected a bool tensor, got \[True\]"),
    "allowed dtype": ({"allowed": torch.ones(3)}, ValueError,
        r"allowed: expected a bool tensor \[\*agents, \d\], got torch.float32 of shape \[3\]"),
    "start half": ({"start": 0.5}, TypeError, "'f': expected integers to start .* start=0.5"),
    "bits": ({"dtype": torch.bool}, ValueError, "'f': .* up to 2, got dtype=torch.bool; give a"),
}  # fmt: skip
COUNT: dict[str, Row] = {
    f"n={n!r}": ({"n": n}, ValueError,
        rf"'f': expected the number of .* n >= 1, got n={text}; give an integer")
    for n, text in {
        0: "0", -1: "-1", None: "None", "3": "'3'", 2.5: "2.5", (3,): r"\(3,\)", True: "True",
    }.items()
}  # fmt: skip
NVEC: dict[str, Row] = {
    f"nvec={nvec!r}": ({"nvec": nvec}, ValueError,
        r"'f': expected the number of options of each dimension, integers >= 1, got nvec=")
    for nvec in ((), 3, (3, 0), (3, 2.5), "32", ((3, 2),), None, torch.tensor(3))
}  # fmt: skip
NVEC["n"] = ({"n": 3}, TypeError, "HotHead: unknown keyword 'n'|CategoricalHead: unknown keyword")
GRADIENT: dict[str, Row] = {
    "grad_method": ({"grad_method": "gumbel"}, ValueError,
        r"grad_method: expected one of \('pass_through', 'relaxed'\), got 'gumbel'"),
    "temperature": ({"temperature": 0}, ValueError, r"temperature: .* > 0, got 0"),
    "temperature nan": ({"temperature": NAN}, ValueError, r"temperature: .* > 0, got nan"),
    "temperature text": ({"temperature": "hot"}, TypeError, "temperature: .* number .* got 'hot'"),
}  # fmt: skip
SHAPE: dict[str, Row] = {
    f"shape={shape!r}": ({"shape": shape}, ValueError,
        r"'f': expected the shape of one action, e.g. \(3,\), or \(\) for a scalar, got shape=")
    for shape in (3, "a", (0,), (-1,), (2.5,), None)
} | {
    "no mask": ({"mask": True}, ValueError, "'f': a .*Head takes no mask, got True"),
    "integers": ({"dtype": torch.int64}, ValueError,
        "'f': expected a floating dtype for a continuous action, got dtype=torch.int64"),
}  # fmt: skip
SCALE: dict[str, Row] = {
    "mapping": ({"scale_mapping": "softpls"}, ValueError, "scale_mapping: no mapping 'softpls'; "),
    "bias": ({"scale_mapping": "biased_softplus_x"}, ValueError, "no mapping 'biased_softplus_x'"),
    "function": ({"scale_mapping": torch.exp}, TypeError, "scale_mapping: expected the name of a"),
    "bound": ({"scale_lb": -1}, ValueError, r"scale_lb: expected a number >= 0, got -1"),
    "bound nan": ({"scale_lb": NAN}, ValueError, r"scale_lb: expected a number >= 0, got nan"),
    "free": ({"free_scale": "yes"}, TypeError, "free_scale: expected True or False, got 'yes'"),
    "free and read": ({"free_scale": True, "scale": "s"}, ValueError,
        "'f': free_scale=True reads no scale, got scale='s'"),
    "loc": ({"loc": 3}, TypeError, f"loc: {KEY} 3"),
    "one key": ({"loc": "a", "scale": "a"}, ValueError, "'f': .* got 'a' twice; rename one"),
    "logits": ({"logits": "x"}, TypeError, "Head: unknown keyword 'logits'; expected one of act"),
}  # fmt: skip
ZEROS, ONES = torch.zeros(2), torch.ones(2)
FIT = (
    r"'f': expected bounds that fit shape=\({}\), got low of shape \[{}\] and high of shape \[{}\]"
)
BOUNDS: dict[str, Row] = {
    "order": ({"low": 1.0, "high": 0.0}, ValueError, "'f': expected .*low <= high, got low="),
    "nan": ({"low": NAN}, ValueError, "'f': expected .*low <= high, got low=.*nan"),
    "text": ({"low": "a"}, TypeError, "'f': expected a number or a tensor, got low='a'"),
    "none": ({"high": None}, TypeError, "'f': expected a number or a tensor, got high=None"),
    "longer": ({"low": torch.zeros(3)}, ValueError, FIT.format("2,", "3", "2?")),
    "unlike": ({"low": ZEROS, "high": torch.ones(3)}, ValueError, FIT.format("2,", "2", "3")),
    "widening": ({"low": ZEROS, "high": ONES, "shape": (1,)}, ValueError,
        FIT.format("1,", "2", "2")),
    "shorter": ({"low": ZEROS, "high": ONES, "shape": (3,)}, ValueError,
        FIT.format("3,", "2", "2")),
}  # fmt: skip
FINITE: dict[str, Row] = {
    "infinite": (
        {"high": INF},
        ValueError,
        "'f': expected finite bounds .*=.*inf.*NormalHead",
    ),
}
STEPS: dict[str, Row] = {
    "length": (
        {"length": 0},
        ValueError,
        "'f': expected the number of steps length >= 1, .*gth=0",
    ),
    "no length": ({"length": None}, ValueError, "'f': .* steps length >= 1, got length=None"),
    "repeat": ({"repeat": "no"}, TypeError, "repeat: expected True or False, got 'no'"),
    "in_key": ({"in_key": 3}, TypeError, f"in_key: {KEY} 3"),
    "features": ({"num_features": 0}, ValueError, "num_features: expected an integer >= 1, got 0"),
    "misspelt": ({"lenght": 3}, TypeError, r"SequenceHead: .* 'lenght'; did you mean 'length'\?"),
    "on_empty": ({"on_empty": "neutral"}, TypeError, "SequenceHead: unknown keyword 'on_empty'"),
    "mask": ({"mask": 3}, TypeError, f"mask: {KEY} 3"),
}
LISTED: dict[str, Row] = {
    "max_legal": (
        {"max_legal": 0},
        ValueError,
        "'f': .* listed choices max_legal >= 1, .*=0",
    ),
    "no max_legal": ({"max_legal": None}, ValueError, "'f': .* max_legal >= 1, got max_legal=None"),
    "legal": ({"legal": True}, TypeError, f"legal: {KEY} True"),
    "mask": ({"mask": True}, TypeError, "unknown keyword 'mask'; its legal choices are listed"),
    "misspelt": ({"max_legl": 3}, TypeError, r"'max_legl'; did you mean 'max_legal'\?"),
    "narrow": (
        {"n": 300, "dtype": torch.int8},
        ValueError,
        "'f': .*up to 299, got .*=torch.int8",
    ),
}

F = {"action_key": "f"}
HEADS: dict[type, tuple[dict[str, Any], dict[str, Row]]] = {
    CategoricalHead: ({**F, "n": 3}, LEAF | MASKED | CHOICE | SHIFTED | COUNT),
    OneHotCategoricalHead: ({**F, "n": 3}, LEAF | MASKED | CHOICE | UNSHIFTED | COUNT | GRADIENT),
    MultiCategoricalHead: ({**F, "nvec": [3, 2]}, LEAF | MASKED | CHOICE | SHIFTED | NVEC | {
        "joint": ({"joint": "no"}, TypeError, "joint: expected True or False, got 'no'")}),
    MultiOneHotHead: (
        {**F, "nvec": [3, 2]}, LEAF | MASKED | CHOICE | UNSHIFTED | NVEC | GRADIENT),
    BernoulliHead: ({**F, "n": 3}, LEAF | MASKED | CHOICE | UNSHIFTED | COUNT),
    SparseCategoricalHead: (
        {**F, "n": 9, "max_legal": 3}, LEAF | CHOICE | UNSHIFTED | COUNT | LISTED),
    NormalHead: ({**F, "shape": (2,)}, LEAF | SHAPE | SCALE),
    TanhNormalHead: ({**F, "shape": (2,)}, LEAF | SHAPE | SCALE | BOUNDS | FINITE),
    BetaHead: ({**F, "shape": (2,)}, LEAF | SHAPE | BOUNDS | FINITE | {
        "one key": ({"alpha": "a", "beta": "a"}, ValueError, "'f': .* got 'a' twice; rename one"),
        "alpha": ({"alpha": 3}, TypeError, f"alpha: {KEY} 3")}),
    BoxNormalHead: (
        {**F, "low": ZEROS, "high": ONES, "shape": (2,)}, LEAF | SHAPE | SCALE | BOUNDS | {
            "never": ({"low": torch.tensor([INF, 0.0]), "high": torch.tensor([INF, 1.0])},
                ValueError, "'f': expected low <= high, got low=.*inf"),
            "default shape": ({"low": ONES, "high": 3 * ONES, "shape": (1,)},
                ValueError, FIT.format("1,", "2", "2"))}),
    SequenceHead: ({**F, "n": 3, "length": 2}, COUNT | STEPS | {
        name: LEAF[name] for name in ("key", "validate", "flag", "generator", "interaction")}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("head", "name"), [(head, name) for head, (_, table) in HEADS.items() for name in table]
)
def test_a_heads_constructor(head: type, name: str) -> None:
    valid, table = HEADS[head]
    head(**valid)
    given, error, message = table[name]
    with pytest.raises(error, match=message):
        head(**{**valid, **given})


def test_every_head_has_ten_entries() -> None:
    assert all(len(table) >= 10 for _, table in HEADS.values())


class OwnHead(CategoricalHead):
    """A subclass with a keyword of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.bonus = options.pop("bonus", 0)
        super().__init__(*args, **options)


def test_a_subclass_may_have_keywords_of_its_own_and_is_named() -> None:
    assert OwnHead("f", 3, bonus=2).bonus == 2
    with pytest.raises(TypeError, match=r"OwnHead: unknown keyword 'msk'; did you mean 'mask'\?"):
        OwnHead("f", 3, msk=True)


def kind(**options: Any) -> CategoricalHead:
    return CategoricalHead("k", 3, **options)


def leaf(**options: Any) -> CategoricalHead:
    return CategoricalHead("f", 2, **options)


COMPOSITE: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "nothing": ((), {}, ValueError, r"CompositeHead: expected at least one leaf, .* got \[\]"),
    "list": (([kind()],), {}, TypeError, "expected heads, got a list; give them one by one"),
    "class": ((CategoricalHead,), {}, TypeError, "CompositeHead: expected heads, got a type"),
    "twice": ((kind(), kind()), {}, ValueError, r"each key once, got \['k', 'k'\]"),
    "in_key": ((kind(),), {"in_key": 3}, TypeError, f"in_key: {KEY} 3"),
    "features": ((kind(),), {"num_features": 0}, ValueError, "num_features: .* >= 1, got 0"),
    "misspelt": ((kind(),), {"num_feature": 3}, TypeError, r"did you mean 'num_features'\?"),
    "mask": ((kind(),), {"mask": True}, TypeError, "CompositeHead: unknown keyword 'mask'; exp"),
    "order": ((leaf(when={"k": 1}), kind()), {}, ValueError,
        r"'f': expected its parent among the leaves before it, \[\], got 'k'; order"),
    "no such choice": ((kind(), leaf(when={"k": 3})), {}, ValueError,
        r"'f': when={'k': \[3\]}: expected choices from 0 to 2"),
    "no choice": ((NormalHead("k"), leaf(when={"k": 1})), {}, ValueError,
        "'f': 'k' is not one choice; when and mask_given need a CategoricalHead"),
    "no mask": ((kind(), leaf(mask_given="k")), {}, ValueError,
        "'f': mask_given needs a mask: give mask=True or its key"),
    "list given": ((kind(), SparseCategoricalHead("f", 9, 3, mask_given="k")), {}, ValueError,
        "'f': a SparseCategoricalHead takes no mask_given"),
    "endless": ((NormalHead("k"), leaf(after=("k",), enumerate_parents=True)), {}, ValueError,
        r"'f': enumerate_parents: \['k'\] take infinitely many values"),
    "options of a leaf": ((kind(), leaf(return_log_prob=False)), {}, ValueError,
        r"\['f'\]: in a composite, return_log_prob, .* are given to the CompositeHead"),
    "written twice": ((kind(), CategoricalHead("k_log_prob", 2)), {}, ValueError,
        "CompositeHead: two leaves write the same key, of "),
    "written over": ((kind(), leaf(logits="k")), {}, ValueError,
        r"'f': expected parameters and a mask that no leaf writes over, got \['k'\]; rename"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITE)
def test_a_composites_constructor(name: str) -> None:
    heads, options, error, message = COMPOSITE[name]
    with pytest.raises(error, match=message):
        CompositeHead(*heads, **options)
