"""Forward and backward of every loss, eager and compiled, around every action space."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks.policies import LOSSES, Policies
from benchmarks.spaces import SPACES, Space

PASSES = ("forward", "forward+backward")


def impls(space: Space, loss: str) -> list[str]:
    return [i for i in space.impls() if i != "torchrl" or loss in space.torchrl_losses]


def cases() -> Iterator[tuple[str, str, int, str, str]]:
    """Every loss around the hybrid at every batch size; the clipped one around every space."""
    for name, space in SPACES.items():
        for loss in LOSSES if name == "hybrid" else ["clip"]:
            for batch in space.batches:
                for which in PASSES:
                    yield from ((loss, name, batch, which, impl) for impl in impls(space, loss))


@pytest.mark.parametrize(("loss", "space", "batch", "which", "impl"), list(cases()))
def test_loss(
    race: Callable[..., None], loss: str, space: str, batch: int, which: str, impl: str
) -> None:
    race(lambda: Policies(SPACES[space], batch).losses(loss, backward=which != "forward"))


@pytest.mark.parametrize("impl", ["tdheads", "plain"])
@pytest.mark.parametrize("batch", [256, 4096])
@pytest.mark.parametrize("loss", LOSSES)
def test_compiled_loss(race: Callable[..., None], loss: str, batch: int, impl: str) -> None:
    race(lambda: Policies(SPACES["hybrid"], batch).losses(loss, compiled=True))
