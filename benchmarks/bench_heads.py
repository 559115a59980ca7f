"""Acting, and log-prob, entropy and KL of every action space."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

from benchmarks.densities import OPERATIONS, density_impls, density_runs
from benchmarks.policies import Policies
from benchmarks.spaces import SPACES

ACTING = [
    pytest.param(name, batch, impl)
    for name, space in SPACES.items()
    for batch in space.batches
    for impl in space.impls()
]
DENSITIES = [
    pytest.param(operation, name, batch, impl)
    for name, space in SPACES.items()
    for batch in space.batches
    for operation in OPERATIONS
    for impl in density_impls(space, operation)
]


@lru_cache(maxsize=1)
def policies(name: str, batch: int) -> Policies:
    return Policies(SPACES[name], batch)


@pytest.mark.parametrize(("space", "batch", "impl"), ACTING)
def test_act(race: Callable[..., None], space: str, batch: int, impl: str) -> None:
    race(lambda: policies(space, batch).acting())


@pytest.mark.parametrize(("operation", "space", "batch", "impl"), DENSITIES)
def test_head(race: Callable[..., None], operation: str, space: str, batch: int, impl: Any) -> None:
    race(lambda: density_runs(policies(space, batch), operation))
