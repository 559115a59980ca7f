"""Ways to build and to score a distribution wrongly, and the message that each deserves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tdheads import (
    ActionDistribution,
    MaskedBernoulli,
    MaskedCategorical,
    MaskedJointCategorical,
    MaskedMultiCategorical,
    MaskedMultiOneHot,
    MaskedOneHotCategorical,
    ScaledBeta,
    SparseCategorical,
    TanhNormal,
)

Row = tuple[Callable[..., Any], type[Exception], str]
Score = tuple[Any, type[Exception], str]
NAN = float("nan")

#: class -> leading arguments of one that is right, and the shape of its mask without batch dims
CHOICES: dict[Any, tuple[tuple[Any, ...], int, tuple[int, ...]]] = {
    MaskedCategorical: ((), 3, (3,)),
    MaskedOneHotCategorical: ((), 3, (3,)),
    MaskedBernoulli: ((), 3, (3,)),
    MaskedMultiCategorical: (([3, 2],), 5, (5,)),
    MaskedMultiOneHot: (([3, 2],), 5, (5,)),
    MaskedJointCategorical: (([3, 2],), 6, (3, 2)),
}


def misspelt(build: Any, x: Tensor, _: Tensor) -> Any:
    return build(x, msk=None)


CHOICE: dict[str, Row] = {
    "nothing": (lambda build, *_: build(None), ValueError,
        "'logits': give either logits or probs, got none"),
    "both": (lambda build, x, _: build(x, probs=x), ValueError,
        "'logits': give either logits or probs, got both"),
    "list": (lambda build, *_: build([0.0, 1.0]), TypeError, "'logits': .*, got a list"),
    "scalar": (lambda build, *_: build(torch.tensor(1.0)), ValueError,
        r"'logits': expected shape \[..., n\], got \[\]; one entry per"),
    "no choice": (lambda build, *_: build(torch.zeros(4, 0)), ValueError,
        r"'logits': expected shape \[..., n\], got \[4, 0\]; .* at least one"),
    "nan": (lambda build, x, _: build(x * NAN), ValueError, "'logits': nan in row"),
    "on_empty": (lambda build, x, _: build(x, on_empty="x"), ValueError, "on_empty: .*, got 'x'"),
    "mask list": (lambda build, x, _: build(x, mask=[True]), TypeError,
        "'mask': expected a tensor or None, got a list"),
    "mask dims": (lambda build, x, m: build(x, mask=m[0]), ValueError,
        r"'mask': expected shape .*, got \[\d(, \d)?\]; "),
    "mask of size 1": (lambda build, x, m: build(x, mask=m[..., :1]), ValueError,
        r"'mask': expected shape .*, got \[4, .*1\]; "),
    "mask values": (lambda build, x, m: build(x, mask=m.float() * 2), ValueError,
        "'mask': expected 1 where a choice is legal and 0 elsewhere"),
    "mask empty": (lambda build, x, m: build(x, mask=~m), ValueError,
        "'mask': no (legal choice|bit may be 1) in row.*; allow one"),
    "misspelt": (misspelt, TypeError, "unexpected keyword argument 'msk'|unknown keyword 'msk'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICE)
@pytest.mark.parametrize("kind", CHOICES)
def test_the_constructor_of_choices(kind: Any, name: str) -> None:
    rest, width, mask = CHOICES[kind]
    act, error, message = CHOICE[name]

    def build(logits: Any, **options: Any) -> Any:
        return kind(logits, *rest, **options)

    x, m = torch.zeros(4, width), torch.ones(4, *mask, dtype=torch.bool)
    build(x, mask=m)
    with pytest.raises(error, match=message):
        act(build, x, m)


@pytest.mark.parametrize("nvec", [[], 3, [3, 0], [3, -1], [3, 2.5], "32", None, [[3, 2]]], ids=str)
@pytest.mark.parametrize("kind", [k for k, (rest, *_) in CHOICES.items() if rest])
def test_what_is_no_number_of_options(kind: Any, nvec: Any) -> None:
    with pytest.raises(ValueError, match=r"'nvec': expected the number of options .*, got nvec="):
        kind(torch.zeros(4, 5), nvec)


@pytest.mark.parametrize("kind", [MaskedOneHotCategorical, MaskedMultiOneHot])
def test_the_gradient_of_one_hots(kind: Any) -> None:
    rest, width, _ = CHOICES[kind]
    for options, message in (
        ({"temperature": 0}, "temperature: expected a number > 0, got 0"),
        ({"grad_method": "gumbel"}, "grad_method: expected one of .*, got 'gumbel'"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(torch.zeros(4, width), *rest, **options)


ROWS = torch.zeros(4, 3)
LEGAL = torch.tensor([[0, 5, -1]]).expand(4, 3)
SPARSE: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "no logits": ((None, LEGAL, 9), {}, ValueError, "'logits': give either logits or probs, got n"),
    "list": (([0.0], LEGAL, 9), {}, TypeError, "'logits': expected a tensor .*, got a list"),
    "nan": ((ROWS * NAN, LEGAL, 9), {}, ValueError, "'logits': nan in rows 0"),
    "no index": ((ROWS, None, 9), {}, TypeError, "'mask': expected a tensor of integers.*NoneType"),
    "mask": ((ROWS, ROWS == 0, 9), {}, TypeError, r"'mask': .*got torch.bool; legal_index\(mask"),
    "short": ((ROWS, LEGAL[:, :2], 9), {}, ValueError, r"'mask': expected shape \[4, 3\], got"),
    "beyond": ((ROWS, LEGAL, 5), {}, ValueError, "'mask': expected -1 to 4, got others in rows 0"),
    "below": ((ROWS, LEGAL - 3, 9), {}, ValueError, "'mask': (expected -1 to 8|no legal choice)"),
    "twice": ((ROWS, LEGAL * 0, 9), {}, ValueError, "'mask': a choice is listed twice in rows 0"),
    "empty": ((ROWS, LEGAL * 0 - 1, 9), {}, ValueError, "'mask': no legal choice in rows 0"),
    "count": ((ROWS, LEGAL, 0), {}, ValueError, "n: expected an integer >= 1, got 0"),
    "half": ((ROWS, LEGAL, 2.5), {}, ValueError, "n: expected an integer >= 1, got 2.5"),
    "on_empty": ((ROWS, LEGAL, 9), {"on_empty": "x"}, ValueError, "on_empty: .*, got 'x'"),
    "probs": ((ROWS, LEGAL, 9), {"probs": ROWS}, TypeError, "SparseCategorical: .* 'probs'; exp"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPARSE)
def test_the_constructor_of_a_list(name: str) -> None:
    given, options, error, message = SPARSE[name]
    with pytest.raises(error, match=message):
        SparseCategorical(*given, **options)


ONES = torch.ones(4, 2)
BOUNDED: dict[str, tuple[dict[Any, Any], type[Exception], str]] = {
    "nan": ({0: ONES * NAN}, ValueError, "'logits': nan in rows 0"),
    "zero": ({1: ONES * 0}, ValueError, "'logits': expected positive numbers, got 0 in rows 0"),
    "negative": ({1: -ONES}, ValueError, "'logits': expected positive numbers, got -1 in"),
    "shape": ({1: torch.ones(4, 3)}, ValueError, r"'logits': .* shape \[4, 2\], got \[4, 3\]"),
    "text": ({1: "a"}, TypeError, "'logits': expected a tensor, got a str for (scale|beta)"),
    "nothing": ({0: None}, TypeError, "'logits': expected a tensor, got a None"),
    "order": ({"low": 1.0, "high": 0.0}, ValueError, "'value': .*low <= high, got low=1.0, high=0"),
    "infinite": ({"high": torch.inf}, ValueError, "'value': expected finite bounds .*high=inf"),
    "no number": ({"low": NAN}, ValueError, "'value': expected finite bounds .*low=nan"),
    "bounds text": ({"low": "a"}, TypeError, "'value': expected a number or a tensor, got low='a'"),
    "misfit": ({"low": torch.zeros(3)}, ValueError,
        r"'value': expected shape that fits \[4, 2\], got \[3\]; bounds broadcast"),
    "wider": ({"low": torch.zeros(5, 4, 2)}, ValueError, r"'value': .*got \[5, 4, 2\]; bounds"),
    "unlike": ({"low": torch.zeros(2), "high": torch.ones(3)}, ValueError,
        r"'value': expected bounds of one shape, got low of shape \[2\] and high of shape \[3\]"),
    "prepared": ({"bounds": 3}, TypeError, "bounds: expected prepared Bounds, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("kind", [TanhNormal, ScaledBeta])
def test_the_constructor_between_bounds(kind: Any, name: str) -> None:
    given, error, message = BOUNDED[name]
    positional = [given.get(place, ONES) for place in (0, 1)]
    keywords = {key: value for key, value in given.items() if isinstance(key, str)}
    with pytest.raises(error, match=message):
        kind(*positional, **keywords)


LEAF = MaskedCategorical(ROWS)
JOINT: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "nothing": (({},), ValueError, "ActionDistribution: expected at least one leaf, got none"),
    "none": ((None,), TypeError, "ActionDistribution: expected a mapping .* got None"),
    "list": (([LEAF],), TypeError, "ActionDistribution: expected a mapping .* got "),
    "leaf": ((LEAF,), TypeError, "ActionDistribution: expected a mapping leaf key"),
    "number": (({"a": 3},), TypeError, "expected a mapping leaf key -> distribution, got {'a': 3}"),
    "key": (({3: LEAF},), TypeError, "ActionDistribution: expected a string or a tuple .* got 3"),
    "twice": (({"a": LEAF, ("a",): LEAF},), ValueError, "ActionDistribution: expected each leaf"),
    "batch": (({"a": LEAF, "b": MaskedCategorical(torch.zeros(3, 2))},), ValueError,
        r"one log-prob per row, got batch shapes {'a': \[4\], 'b': \[3\]}; give every leaf"),
    "size text": (({"a": LEAF}, "x"), TypeError, "batch_size: expected a tuple .* got 'x'"),
    "size number": (({"a": LEAF}, -1), TypeError, "batch_size: expected a tuple .* got -1"),
    "size none": (({"a": LEAF}, None), TypeError, "batch_size: expected a tuple .* got None"),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINT)
def test_the_constructor_of_a_joint_distribution(name: str) -> None:
    given, error, message = JOINT[name]
    with pytest.raises(error, match=message):
        ActionDistribution(*given)


# ---- log_prob

NO_TENSOR = {str(v): v for v in (3, None, "a", [0])}
DISTS: dict[str, tuple[Any, tuple[int, ...], dict[str, Score]]] = {
    "categorical": (LEAF, (4,), {
        "beyond": (torch.full((4,), 7), ValueError, "'value': choice 7 in rows 0, .* not one of 0"),
    }),
    "sparse": (SparseCategorical(ROWS, LEGAL, 9), (4,), {
        "beyond": (torch.full((4,), 9), ValueError, "'value': choice 9 in rows 0, .* of 0 to 8"),
    }),
    "one-hot": (MaskedOneHotCategorical(ROWS), (4, 3), {
        "zeros": (ROWS, ValueError, "'value': expected one-hot vectors, got .* in rows 0, "),
    }),
    "bits": (MaskedBernoulli(ROWS), (4, 3), {
        "twos": (ROWS + 2, ValueError, "'value': expected zeros and ones, got .* in rows 0"),
    }),
    "multi": (MaskedMultiCategorical(torch.zeros(4, 5), [3, 2]), (4, 2), {
        "beyond": (torch.full((4, 2), 9), ValueError, "'value': choice 9 in rows .0, 0., "),
    }),
    "multi one-hot": (MaskedMultiOneHot(torch.zeros(4, 5), [3, 2]), (4, 5), {
        "ones": (torch.ones(4, 5), ValueError, "'value': expected one-hot vectors, got "),
    }),
    "joint": (MaskedJointCategorical(torch.zeros(4, 6), [3, 2]), (4, 2), {}),
    "tanh": (TanhNormal(ONES, ONES), (4, 2), {
        "outside": (ONES * 9, ValueError, r"'value': 9 in rows .* is outside of \[-1, 1\]; write"),
        "integers": (ONES.long(), TypeError, "'value': expected floating point numbers, got torch"),
    }),
    "beta": (ScaledBeta(ONES, ONES), (4, 2), {
        "outside": (ONES * 9, ValueError, r"'value': 9 in rows .* is outside of \[0, 1\]; write"),
        "integers": (ONES.long(), TypeError, "'value': expected floating point numbers, got torch"),
    }),
}  # fmt: skip


def values(shape: tuple[int, ...]) -> dict[str, Score]:
    """What is no action of any of them."""
    good = torch.zeros(shape)
    wrong = {
        "stray": good.unsqueeze(-1),
        "rows": torch.zeros(3, *shape[1:]),
        "size 1": good[..., :1],
        "scalar": torch.zeros(()),
    }
    table: dict[str, Score] = {
        name: (value, ValueError, r"'value': expected shape \[\.\.\., 4.*\], got \[.*\]; an action")
        for name, value in wrong.items()
    }
    for name, given in NO_TENSOR.items():
        table[name] = given, TypeError, "'value': expected a tensor of actions, got "
    table["nan"] = good * NAN, ValueError, "'value': .*nan"
    table["fraction"] = good + 0.5, ValueError, r"'value': .*0\.5"
    return table


SCORES = {name: values(shape) | own for name, (_, shape, own) in DISTS.items()}
for name in ("tanh", "beta"):
    SCORES[name].pop("fraction")


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, table in SCORES.items() for name in table]
)
def test_log_prob(kind: str, name: str) -> None:
    value, error, message = SCORES[kind][name]
    with pytest.raises(error, match=message):
        DISTS[kind][0].log_prob(value)


BOTH = ActionDistribution({"a": LEAF, "b": LEAF}, [4])
ZEROS = torch.zeros(4)
OF_TWO: dict[str, Score] = {
    **{str(v): (v, TypeError, r"log_prob: expected a tensordict with \['a', 'b'\], got a ")
       for v in (None, 3, "a", ZEROS, {"a": ZEROS})},
    "one": (TensorDict({"a": ZEROS}, [4]), KeyError, "'b': not in .*'a'; give an action for every"),
    "stray": (TensorDict({"a": ZEROS, "b": torch.zeros(4, 1)}, [4]), ValueError, "expected shape"),
    "rows": (TensorDict({"a": torch.zeros(3), "b": torch.zeros(3)}, [3]), ValueError, r"got \[3\]"),
    "beyond": (TensorDict({"a": ZEROS, "b": ZEROS + 9}, [4]), ValueError, "choice 9.0 in rows 0"),
    "nested": (TensorDict({"a": TensorDict({}, [4]), "b": ZEROS}, [4]), TypeError, "got Tensor"),
    "log-probs": (BOTH.log_prob(BOTH.sample()), KeyError, "'a': not in .*'a_log_prob'"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TWO)
def test_log_prob_of_a_joint_distribution(name: str) -> None:
    value, error, message = OF_TWO[name]
    with pytest.raises(error, match=message):
        BOTH.log_prob(value)
    if isinstance(value, (int, Tensor)):
        with pytest.raises(TypeError, match="KL: expected an ActionDistribution, got "):
            BOTH.kl(value)


def test_every_call_has_ten_entries() -> None:
    tables = [CHOICE, SPARSE, BOUNDED, JOINT, OF_TWO, *SCORES.values()]
    assert all(len(table) >= 10 for table in tables)
