"""``run(module, td)`` is ``module(td)``, for every kind of module that it does not call itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential, set_skip_existing
from torch import Tensor, nn

from tdheads.entries import packed, read, shallow_copy, write
from tdheads.running import run


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x - 1


def named(x: Tensor) -> dict[str, Tensor]:
    return {"z": 3 * x, "y": 2 * x}


class Counted(nn.Module):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return 2 * x


MODULES: dict[str, Any] = {
    "one": lambda: TensorDictModule(nn.Tanh(), ["x"], ["y"]),
    "two": lambda: TensorDictModule(two, ["x"], ["y", ("deep", "z")]),
    "ignored": lambda: TensorDictModule(two, ["x"], ["_", "z"]),
    "dict": lambda: TensorDictModule(named, ["x"], ["y", "z"]),
    "nested": lambda: TensorDictModule(lambda td: td.clone(), ["deep"], ["copy"]),
    "keywords": lambda: TensorDictModule(lambda a: a + 1, {"a": "x"}, ["y"]),
    "outside": lambda: TensorDictModule(nn.Tanh(), ["x"], ["y"], inplace=False),
    "optional": lambda: TensorDictModule(lambda x, h: x if h is None else h, ["x", "h"], ["y"]),
    "sequence": lambda: TensorDictSequential(
        TensorDictModule(nn.Tanh(), ["x"], ["y"]), TensorDictModule(two, ["y"], ["y", "z"])
    ),
    "selected": lambda: TensorDictSequential(
        TensorDictModule(two, ["x"], ["y", "z"]), selected_out_keys=["z"]
    ),
}


def batch() -> TensorDict:
    return TensorDict({"x": torch.arange(3.0), "deep": {"a": torch.ones(3)}}, [3])


@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
def test_it_is_a_call_of_the_module(build: Any) -> None:
    module, td, other = build(), batch(), batch()
    found, expected = run(module, td), module(other)
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    assert (found == expected).all()
    assert (found is td) == (expected is other)


def test_hooks_run() -> None:
    seen = []
    module = TensorDictModule(nn.Tanh(), ["x"], ["y"])
    module.register_forward_hook(lambda *_: seen.append(1))
    run(TensorDictSequential(module), batch())
    assert seen == [1]


def test_a_compiled_module_runs_compiled() -> None:
    module = TensorDictModule(nn.Tanh(), ["x"], ["y"])
    module._compiled_call_impl = lambda td: td.set("y", td["x"] + 7)
    assert (run(module, batch())["y"] == batch()["x"] + 7).all()


def test_existing_entries_are_skipped_where_that_is_asked_for() -> None:
    net = Counted()
    module, td = TensorDictModule(net, ["x"], ["y"]), batch()
    run(module, td)
    with set_skip_existing(True):
        run(module, td)
    assert net.calls == 1


def test_a_missing_entry_is_an_error_of_tensordict() -> None:
    module = TensorDictModule(nn.Linear(3, 3), ["missing"], ["y"])
    with pytest.raises((KeyError, TypeError)):
        run(module, batch())


@pytest.mark.parametrize("key", ["y", ("deep", "y"), ("new", "y")])
def test_write_is_set(key: Any) -> None:
    td, other = batch(), batch()
    value = torch.ones(3, 2)
    write(td, [(key, value)])
    assert td.get(key) is value
    assert read(td, key) is value
    assert set(td.keys(True, True)) == set(other.set(key, value).keys(True, True))


def test_write_refuses_what_set_refuses() -> None:
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        write(batch(), [("y", torch.ones(2))])
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        write(batch(), [("y", torch.ones(()))])
    with pytest.raises(RuntimeError, match="locked"):
        write(batch().lock_(), [("y", torch.ones(3))])


def test_write_converts_what_set_converts() -> None:
    td = batch().to("meta")
    write(td, [("y", torch.ones(3))])
    assert td["y"].device.type == "meta"


def test_a_shallow_copy_shares_tensors_and_nothing_else() -> None:
    td = batch().lock_()
    td.batch_size = torch.Size([3])
    copied = shallow_copy(td)
    assert copied["x"] is td["x"]
    assert copied["deep", "a"] is td["deep", "a"]
    copied.set(("deep", "a"), torch.zeros(3))
    copied.set("x", torch.zeros(3))
    assert td["deep", "a"].all()
    assert td["x"].any()
    assert copied.batch_size == copied["deep"].batch_size == td.batch_size


def test_a_shallow_copy_keeps_names_and_what_is_no_tensor() -> None:
    td = batch().set_non_tensor("note", "kept")
    td.names = ["time"]
    assert shallow_copy(td).names == ["time"]
    assert shallow_copy(td)["note"] == "kept"


def test_packed_is_a_tensordict_of_the_entries() -> None:
    td = packed(
        {"loss": torch.zeros(()), ("a", "b", "c"): torch.ones(()), ("a", "d"): torch.ones(2)}
    )
    assert td.batch_size == td["a", "b"].batch_size == torch.Size([])
    assert set(td.keys(True, True)) == {"loss", ("a", "b", "c"), ("a", "d")}


def test_a_forward_that_was_replaced_runs() -> None:
    seen = []
    module = TensorDictModule(nn.Tanh(), ["x"], ["y"])
    sequence = TensorDictSequential(module)
    forward = module.forward
    module.forward = lambda td: seen.append("module") or forward(td)  # type: ignore[func-returns-value]
    run(sequence, batch())
    whole = sequence.forward
    sequence.forward = lambda td: seen.append("sequence") or whole(td)  # type: ignore[func-returns-value]
    run(sequence, batch())
    assert seen == ["module", "sequence", "module"]


def test_hooks_of_all_modules_run() -> None:
    seen = []
    hook = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m)))
    try:
        run(TensorDictModule(nn.Tanh(), ["x"], ["y"]), batch())
    finally:
        hook.remove()
    assert seen == [nn.Tanh, TensorDictModule]
