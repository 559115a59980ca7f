"""``run(module, td)`` is ``module(td)``, for every kind of module that it does not call itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential, set_skip_existing
from torch import Tensor, nn

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
