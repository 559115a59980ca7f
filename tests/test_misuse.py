"""Ways to call wrongly what is public, and the message that each of them deserves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Binary, Categorical, Composite, NonTensor, Unbounded

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    KLPENPPOLoss,
    MultiCategoricalHead,
    NormalHead,
    SparseCategoricalHead,
    diagnose,
    make_actor,
    make_head,
    register_head,
)
from tdheads.heads.registry import FACTORIES
from tests.batches import collect
from tests.cases import HEADS, critic

CASES = {case.name: case for case in HEADS}
MASKED, HYBRID = CASES["masked"], CASES["hybrid"]
KEY = "expected a string or a tuple of strings, got"

Change = Callable[[TensorDict, Any], Any]
Row = tuple[Change, type[Exception], str]
Call = tuple[Callable[[], Any], type[Exception], str]


def put(key: Any, change: Callable[[Any], Any]) -> Change:
    return lambda td, _: td.set(key, change(td[key]))


def drop(*keys: str) -> Change:
    return lambda td, _: [td.__delitem__(key) for key in keys]


def valid(key: Any, mask: Any) -> Change:
    def change(td: TensorDict, loss: Any) -> None:
        td["valid"] = mask
        loss.loss_mask_key = key

    return change


def each(td: TensorDict, loss: Any, shape: tuple[int, ...], skip: int = 0) -> None:
    parts = {key: torch.zeros(shape) for key in loss.action_keys[skip:]}
    td["advantage"] = TensorDict(parts, [5])


def illegal(td: TensorDict, _: Any) -> None:
    td["action"][3], td["action_mask"][3, 4] = 4, False


def whole(key: str) -> Change:
    return lambda td, _: td.set(key, TensorDict({"x": torch.zeros(5)}, [5]))


# ---- a loss's forward

STRAY = r"'{}': expected shape \[{}\], got \[{}\]; "
FORWARD: dict[str, Row] = {
    **{f"no {key}": (drop(key), KeyError, f"'{key}': not in the tensordict, which holds .*; {todo}")
       for key, todo in {
           "action": "store the actions that were taken",
           "action_log_prob": "store the log-probs that the actor wrote",
           "action_mask": "the head was built with a mask",
           "value_target": "run a value estimator",
           "state_value": "clip_value is set to 0.1"}.items()},
    "no advantage": (drop("advantage"), KeyError, "'next', 'reward'.: not in .*run a value esti"),
    "no observation": (drop("observation"), KeyError, "'observation'"),
    **{f"stray {key}": (put(key, lambda x: x.unsqueeze(-1)), ValueError,
                        STRAY.format(key, shape, shape + ", 1") + todo)
       for key, shape, todo in (
           ("action", "5", "no dim of an action"),
           ("action_log_prob", "5", "one log-prob per row"),
           ("action_mask", "5, 7", "one entry per row and choice"),
           ("advantage", "5, 1", "one advantage per log-prob"),
           ("value_target", "5, 1", "it has to have the shape of the critic's output"),
           ("state_value", "5, 1", "it has to be the critic's output at collection"))},
    **{f"flat {key}": (put(key, lambda x: x.squeeze(-1)), ValueError,
                       STRAY.format(key, "5, 1", "5"))
       for key in ("advantage", "value_target", "state_value")},
    **{f"integer {key}": (put(key, lambda x: x.long()), TypeError,
                          f"'{key}': expected floating point numbers, got torch.int64; convert it")
       for key in ("action_log_prob", "advantage", "value_target")},
    **{f"whole {key}": (whole(key), TypeError, f"'{key}': expected .*tensor, got a TensorDict; ")
       for key in ("action", "action_log_prob", "action_mask", "value_target")},
    **{f"text {key}": (lambda td, _, key=key: td.set_non_tensor(key, "x"), TypeError,
                       f"'{key}': expected a tensor, got a NonTensorData; ")
       for key in ("action", "action_log_prob", "action_mask")},
    "action with grad": (put("action", lambda x: x.float().requires_grad_()), ValueError,
        "'action': expected a stored action, got one that requires grad"),
    "log-prob with grad": (put("action_log_prob", lambda x: x.requires_grad_()), ValueError,
        "'action_log_prob': expected a stored log-prob, got one that requires grad"),
    "illegal": (illegal, ValueError, "'action': the stored action 4 in row 3 .* is illegal under"),
    "out of range": (put("action", lambda x: x * 0 + 7), ValueError,
        "'action': choice 7 in rows 0, .* is not one of 0 to 6"),
    "negative": (put("action", lambda x: x * 0 - 1), ValueError, "'action': choice -1 in rows 0, "),
    "fraction": (put("action", lambda x: x + 0.5), ValueError, "'action': choice .*.5 in rows 0, "),
    "nan input": (put("observation", lambda x: x * torch.nan), ValueError,
        "'action_logits': nan in rows 0, .*; look at the network"),
    "all False": (put("action_mask", torch.zeros_like), ValueError,
        "'action_mask': no legal choice in rows 0, .*; allow one"),
    "additive mask": (put("action_mask", lambda x: x * -torch.inf), ValueError,
        "'action_mask': expected 1 where a choice is legal .* `mask == 0`"),
    "narrow mask": (put("action_mask", lambda x: x[:, :3]), ValueError,
        STRAY.format("action_mask", "5, 7", "5, 3")),
    "advantages": (lambda td, loss: each(td, loss, (5, 1)), ValueError,
        "'advantage': expected a tensor, got a tensordict; .* aggregate='none'"),
    "validity missing": (valid("vlid", torch.ones(5)), KeyError, "'vlid': not in .* loss_mask_key"),
    "validity shape": (valid("valid", torch.ones(5, 3)), ValueError,
        r"validity mask \(loss_mask_key\) of shape \[5, 3\]: expected one .*\[5\]; reduce it"),
    "validity of what": (valid("valid", TensorDict({"m": torch.ones(5)}, [5])), TypeError,
        "'valid': expected a tensor, got a TensorDict; name the entry"),
    "wrong action key": (lambda _, loss: loss.set_keys(action="acton"), KeyError,
        "'acton': not in the tensordict, which holds 'action'"),
    "log-probs": (lambda _, loss: loss.set_keys(sample_log_prob=["a", "b"]), ValueError,
        r"sample_log_prob: expected one key per leaf \['action'\], got \['a', 'b'\]"),
    "wrong value key": (lambda td, loss: (loss.set_keys(value="v"), td.set("v", td["advantage"])),
        ValueError, r"'v': expected the critic to write it, got out_keys=\['state_value'\]; name"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_the_forward_of_a_loss(name: str) -> None:
    change, error, message = FORWARD[name]
    actor = MASKED.actor()
    td = collect(MASKED, actor, [5])
    td["action_mask"] = torch.ones(5, 7, dtype=torch.bool)
    loss = ClipPPOLoss(actor, critic(), clip_value=0.1)
    change(td, loss)
    with pytest.raises(error, match=message):
        loss(td)


LEAVES: dict[str, tuple[Change, dict[str, Any], type[Exception], str]] = {
    **{f"stray {key}": (put(key, lambda x: x.unsqueeze(-1)), {}, ValueError,
                        rf"{''.join(key[-1:])}'?.*: expected shape .*, 1\]; ")
       for key in ("kind", "items", "where", ("arm", "force"))},
    "no leaf": (drop("items"), {}, KeyError, "'items': not in the tensordict"),
    "outside": (put("where", lambda x: x * 0 + 9), {}, ValueError,
        r"'where': 9 in rows 0, .* is outside of \[-1, 3\]; write the action"),
    "no number": (put("where", lambda x: x * torch.nan), {}, ValueError, "'where': nan in rows 0"),
    "integers": (put("where", lambda x: x.long()), {}, TypeError,
        "'where': expected floating point numbers, got torch.int64"),
    "one advantage too few": (lambda td, loss: each(td, loss, (5, 1), 1), {"aggregate": "none"},
        KeyError, "'advantage', 'kind'.: not in .* give one advantage for each leaf"),
    "flat advantages": (lambda td, loss: each(td, loss, (5,)), {"aggregate": "none"}, ValueError,
        r"'advantage', 'kind'.: expected shape \[5, 1\], got \[5\]"),
    "leaves": (lambda _, loss: loss.set_keys(action=["kind", "items"]), {}, ValueError,
        r"action: expected the leaves \['kind', .* of the actor, got \['kind', 'items'\]"),
    "dims": (lambda *_: None, {"normalize_advantage": True,
        "normalize_advantage_exclude_dims": (5,)}, ValueError,
        "normalize_advantage_exclude_dims: expected dims of the advantage, -2 to 1, got 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_the_forward_of_a_loss_over_several_leaves(name: str) -> None:
    change, options, error, message = LEAVES[name]
    actor = HYBRID.actor()
    td = collect(HYBRID, actor, [5])
    loss = ClipPPOLoss(actor, critic(), **options)
    change(td, loss)
    with pytest.raises(error, match=message):
        loss(td)


STORED: dict[str, Row] = {
    "missing": (drop("action_logits"), KeyError, "'action_logits': not in .*the KL is taken from"),
    "no mask": (drop("action_mask"), KeyError, "'action_mask': not in .*the KL is taken from"),
    "narrow": (put("action_logits", lambda x: x[:, :3]), ValueError,
        r"'action_logits': expected shape \[..., 7\], got \[5, 3\]"),
    "nan": (put("action_logits", lambda x: x * torch.nan), ValueError, "'action_logits': nan in"),
    "whole": (whole("action_logits"), TypeError, "'action_logits': expected a tensor, got a Tens"),
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_for_the_kl(name: str) -> None:
    change, error, message = STORED[name]
    actor = MASKED.actor()
    td = collect(MASKED, actor, [5])
    change(td, None)
    with pytest.raises(error, match=message):
        KLPENPPOLoss(actor, critic())(td)


# ---- a head's forward and get_dist

ROWS = torch.zeros(4, 3)
ONES = torch.ones(4, 3, dtype=torch.bool)
LEGAL = torch.tensor([[0, 5, -1]]).expand(4, 3)


def inputs(**changes: Any) -> TensorDict:
    entries = {
        "f_logits": ROWS, "f_mask": ONES, "f_loc": ROWS, "f_scale": ROWS, "f_legal": LEGAL,
    }  # fmt: skip
    given = {k: v for k, v in {**entries, **changes}.items() if v is not None}
    return TensorDict(given, [4])


HEAD, NORMAL = CategoricalHead("f", 3, mask=True), NormalHead("f", (3,))
LIST, MULTI = SparseCategoricalHead("f", 9, 3), MultiCategoricalHead("f", [2, 1], mask=True)
ACTING: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no logits": (HEAD, inputs(f_logits=None), KeyError, "'f_logits': not in .*head.projection"),
    "no mask": (HEAD, inputs(f_mask=None), KeyError, "'f_mask': not in .*never falls back to none"),
    "wide logits": (HEAD, inputs(f_logits=torch.zeros(4, 6)), ValueError,
        r"'f_logits': expected shape \[..., 3\], got \[4, 6\]; the network has to write the log"),
    "stray mask": (HEAD, inputs(f_mask=ONES.unsqueeze(-1)), ValueError,
        r"'f_mask': expected shape \[4, 3\], got \[4, 3, 1\]; .*nothing is broadcast"),
    "mask of size 1": (HEAD, inputs(f_mask=ONES[:, :1]), ValueError,
        r"'f_mask': expected shape \[4, 3\], got \[4, 1\]; .*nothing is broadcast"),
    "mask values": (HEAD, inputs(f_mask=ROWS - 2), ValueError, "'f_mask': expected 1 where a cho"),
    "all False": (HEAD, inputs(f_mask=~ONES), ValueError, "'f_mask': no legal choice in rows 0"),
    "nan": (HEAD, inputs(f_logits=ROWS * torch.nan), ValueError, "'f_logits': nan in rows 0"),
    "inf": (HEAD, inputs(f_logits=ROWS + torch.inf), ValueError, "'f_logits': no finite distribut"),
    "nested": (HEAD, inputs(f_logits=TensorDict({}, [4])), TypeError,
        "'f_logits': expected a tensor, got a TensorDict"),
    "no loc": (NORMAL, inputs(f_loc=None), KeyError, "'f_loc': not in the tensordict"),
    "stray scale": (NORMAL, inputs(f_scale=ROWS.unsqueeze(-1)), ValueError,
        r"'f_scale': expected shape \[..., 3\], got \[4, 3, 1\]"),
    "nan loc": (NORMAL, inputs(f_loc=ROWS * torch.nan), ValueError, "'f_loc': nan in rows 0"),
    "product mask": (MULTI, inputs(f_mask=torch.ones(4, 1, 2)), ValueError,
        r"'f_mask': expected shape \[4, 3\] or \[4, 2, 2\], got \[4, 1, 2\]; .*joint=True"),
    "no list": (LIST, inputs(f_legal=None), KeyError, "'f_legal': not in the tensordict"),
    "list out of range": (LIST, inputs(f_legal=LEGAL + 8), ValueError,
        "'f_legal': expected -1 to 8, got others in rows 0"),
    "listed twice": (LIST, inputs(f_legal=LEGAL * 0), ValueError, "'f_legal': .* is listed twice"),
    "list of floats": (LIST, inputs(f_legal=ROWS), TypeError,
        "'f_legal': expected a tensor of integers, .*got torch.float32; legal_index"),
    "out of its composite": (CategoricalHead("f", 3, when={"k": 1}), inputs(), ValueError,
        r"'f': it depends on \['k'\]; put them into one CompositeHead"),
}  # fmt: skip


@pytest.mark.parametrize("method", ["forward", "get_dist"])
@pytest.mark.parametrize("name", ACTING)
def test_a_heads_forward_and_get_dist(name: str, method: str) -> None:
    head, td, error, message = ACTING[name]
    with pytest.raises(error, match=message):
        getattr(head, method)(td.clone())


@pytest.mark.parametrize("given", [None, 3, ROWS, {"f_logits": ROWS}], ids=str)
def test_get_dist_of_no_tensordict(given: Any) -> None:
    with pytest.raises(TypeError, match="'f_logits': expected a tensordict that holds it, got "):
        HEAD.get_dist(given)


# ---- functions

NET = TensorDictModule(nn.Linear(4, 64), ["o"], ["hidden"])
THREE = Categorical(3)
BOTH = Composite(a=Categorical(3), b=Categorical(3))
PLAIN = CategoricalHead("f", 3)
LOSS = ClipPPOLoss(MASKED.actor(), critic())


def registered(factory: Any) -> Any:
    register_head(NonTensor)(factory)
    return make_head(NonTensor(()))


@pytest.fixture(autouse=True)
def _no_factory_stays() -> Iterator[None]:
    before = dict(FACTORIES)
    yield
    FACTORIES.clear()
    FACTORIES.update(before)


CALLS: dict[str, dict[str, Call]] = {
    "make_head": {
        "nothing": (lambda: make_head(None), TypeError, "action_spec: .* got a NoneType"),
        "dict": (lambda: make_head({"a": THREE}), TypeError, "action_spec: .* got a dict"),
        "empty": (lambda: make_head(Composite()), ValueError, "action_spec: expected an action"),
        "observation": (lambda: make_head(THREE, 3), TypeError, "observation_spec: .* got a int"),
        "on_empty": (lambda: make_head(THREE, on_empty="x"), ValueError, "on_empty: .* got 'x'"),
        "joint": (lambda: make_head(THREE, joint="yes"), TypeError, "joint: .*, got 'yes'"),
        "free": (lambda: make_head(THREE, free_scale="y"), TypeError, "free_scale: .*, got 'y'"),
        "scale": (lambda: make_head(Unbounded(3), scale_mapping="x"), ValueError,
            "scale_mapping: no mapping 'x'"),
        "misspelt": (lambda: make_head(THREE, vaildate=True), TypeError, r"make_head\(\) .*vaild"),
        "mask of no leaf": (lambda: make_head(THREE, mask={"b": "m"}), ValueError,
            r"unknown leaves \['b'\]: expected some of \['action'\]"),
        "mask number": (lambda: make_head(THREE, mask=3), TypeError, f"mask: {KEY} 3"),
        "mask leaf": (lambda: make_head(THREE, mask={3: "m"}), TypeError, f"mask: {KEY} 3"),
        "mask of two": (lambda: make_head(BOTH, mask="m"), ValueError,
            r"mask='m': say which of the leaves \['a', 'b'\] it belongs to"),
        "mask guess": (lambda: make_head(BOTH, Composite(action_mask=Binary(3))), ValueError,
            "'action_mask': it may be the mask of 'a' or of 'b'; say which"),
        "mask width": (lambda: make_head(THREE, Composite(action_mask=Binary(4))), ValueError,
            r"'action_mask': .* of shape \[3\], got \[4\]; .*mask={leaf: key or False}"),
        "options": (lambda: make_head(THREE, leaf_options=3), TypeError, "leaf_options: .* got 3"),
        "option": (lambda: make_head(THREE, leaf_options={"action": 3}), TypeError,
            "leaf_options: expected a mapping leaf -> options, .* got {'action': 3}"),
        "option name": (lambda: make_head(THREE, leaf_options={"action": {"on_emty": 1}}),
            TypeError, r"make_head: unknown options \['on_emty'\]; known are .*on_empty"),
        "integers": (lambda: make_head(Unbounded(3, dtype=torch.int64)), ValueError,
            "'action': no head for integers without bounds; give the spec bounds"),
        "dims": (lambda: make_head(Categorical(3, shape=(2, 2))), ValueError,
            r"'action': no head for discrete actions of shape \[2, 2\]; flatten"),
        "no head": (lambda: make_head(NonTensor(())), ValueError,
            r"'action': no head for a NonTensor .*; add yours with register_head\(NonTensor\)"),
        "batch": (lambda: make_head(THREE, Composite(shape=(4,))), ValueError,
            r"action spec of shape \[\]: .*batch dims \[4\] of the observation spec; take both"),
    },
    "register_head": {
        **{f"for {given!r}": (lambda given=given: register_head(given), TypeError,
            "register_head: expected a class of TorchRL's specs, got .*; write @register_head")
           for given in (3, None, "Categorical", int, [Categorical], len, nn.Linear)},
        "without a class": (lambda: register_head(), TypeError, "register_head.*'spec_class'"),
        "no function": (lambda: register_head(NonTensor)(3), TypeError,
            r"register_head\(NonTensor\): expected a function .*, got 3"),
        "builds nothing": (lambda: registered(lambda *_, **__: None), TypeError,
            "'action': expected a LeafHead from the factory registered for NonTensor, got None"),
        "builds a net": (lambda: registered(lambda *_, **__: nn.Linear(2, 2)), TypeError,
            "'action': expected a LeafHead from the factory .* got Linear"),
        "builds another": (lambda: registered(lambda *_, **__: PLAIN), ValueError,
            "'action': .* the head of this key, got that of 'f'; pass it the action_key"),
    },
    "make_actor": {
        "net": (lambda: make_actor(nn.Linear(2, 2), PLAIN), TypeError,
            r"backbone: expected a TensorDictModule, got a Linear; wrap it: TensorDictModule\(net"),
        "no net": (lambda: make_actor(None, PLAIN), TypeError, "backbone: .* got a NoneType"),
        "swapped": (lambda: make_actor(PLAIN, NET), TypeError, "head: .* got a TensorDictModule"),
        "head": (lambda: make_actor(NET, nn.Linear(2, 2)), TypeError, "head: .* got a Linear; bui"),
        "heads": (lambda: make_actor(NET, [PLAIN]), TypeError, "head: expected a head, got a list"),
        "class": (lambda: make_actor(NET, CategoricalHead), TypeError, "head: .* got a type"),
        "in_key": (lambda: make_actor(NET, PLAIN, "hiden"), ValueError,
            r"'hiden': expected the backbone to write .*, got out_keys=\['hidden'\]; name its"),
        "key": (lambda: make_actor(NET, PLAIN, in_key=3), TypeError, f"in_key: {KEY} 3"),
        "width": (lambda: make_actor(NET, PLAIN, num_features=0), ValueError, "features: .*got 0"),
        "half": (lambda: make_actor(NET, PLAIN, num_features=2.5), ValueError, "num_.* got 2.5"),
        "gain": (lambda: make_actor(NET, PLAIN, gain="a"), TypeError, "gain: .* got 'a'"),
        "less": (lambda: make_actor(NET, PLAIN, gain=-1.0), ValueError, "gain: .*>= 0.*, got -1.0"),
        "misspelt": (lambda: make_actor(NET, PLAIN, num_feature=3), TypeError, "num_feature"),
    },
    "projection": {
        **{f"width {n!r}": (lambda n=n: PLAIN.projection(n), error,
                            f"num_features: expected an integer >= 1, got {n!r}")
           for n, error in {0: ValueError, -3: ValueError, 2.5: ValueError, True: ValueError,
                            "a": TypeError, None: TypeError}.items()},
        "key": (lambda: PLAIN.projection(8, 3), TypeError, f"in_key: {KEY} 3"),
        "keys": (lambda: PLAIN.projection(8, ["h"]), TypeError, rf"in_key: {KEY} \['h'\]"),
        "gain": (lambda: PLAIN.projection(8, gain=-1.0), ValueError, "gain: .* got -1.0"),
        "gain nan": (lambda: LIST.projection(8, gain=torch.nan), ValueError, "gain: .* got nan"),
        "list": (lambda: LIST.projection(0), ValueError, "num_features: .* got 0"),
        "nothing": (lambda: PLAIN.projection(), TypeError, "projection.* 'num_features'"),
        "missing": (lambda: PLAIN.projection(8)(TensorDict({}, [4])), KeyError, "'hidden'"),
    },
    "split_params": {
        **{f"key {key!r}": (lambda key=key: PLAIN.split_params(key), TypeError,
                            f"in_key: {KEY} ".replace("(", r"\("))
           for key in (3, None, ["a"], (), ("a", 1), {"a"}, 2.5)},
        "wide": (lambda: PLAIN.split_params("raw")(TensorDict({"raw": torch.zeros(4, 7)}, [4])),
            ValueError, r"'raw': expected shape \[..., 3\], got \[4, 7\]; .* head.num_params"),
        "scalar": (lambda: PLAIN.split_params("raw")(TensorDict({"raw": torch.zeros(())})),
            ValueError, r"'raw': expected shape \[..., 3\], got \[\]"),
        "missing": (lambda: PLAIN.split_params("raw")(TensorDict({}, [4])), KeyError, "'raw'"),
    },
    "diagnose": {
        **{f"loss {type(loss).__name__}": (lambda loss=loss: diagnose(loss, TensorDict()),
            TypeError,
            f"loss: expected a loss of tdheads, got a {type(loss).__name__}")
           for loss in (None, PLAIN, 3, nn.Linear(2, 2), TensorDict(), ClipPPOLoss, [LOSS])},
        **{f"batch {type(td).__name__}": (lambda td=td: diagnose(LOSS, td), TypeError,
            f"td: expected a tensordict, got a {type(td).__name__}")
           for td in (None, {}, torch.zeros(3), "td", [TensorDict()], LOSS)},
        "nothing": (lambda: diagnose(), TypeError, "diagnose.* 'loss' and 'td'"),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "name"), [(call, name) for call, table in CALLS.items() for name in table]
)
def test_a_function(call: str, name: str) -> None:
    act, error, message = CALLS[call][name]
    with pytest.raises(error, match=message):
        act()


def test_every_call_has_ten_entries() -> None:
    tables = [FORWARD, ACTING, *CALLS.values()]
    assert all(len(table) >= 10 for table in tables)
