"""Processor time of importing, each in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

import pytest

IMPORTS = {"tdheads": "tdheads", "torchrl": "torchrl.modules, torchrl.objectives", "plain": "torch"}


def time_of(modules: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-W", "ignore", "-c", f"import {modules}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="module")
def times() -> dict[str, list[float]]:
    for modules in IMPORTS.values():
        time_of(modules)  # the first import writes byte code
    rounds = [{impl: time_of(modules) for impl, modules in IMPORTS.items()} for _ in range(4)]
    return {impl: [measured[impl] for measured in rounds] for impl in IMPORTS}


@pytest.mark.parametrize("impl", IMPORTS)
def test_import(times: dict[str, list[float]], report: Callable[..., None], impl: str) -> None:
    report(times, impl)
