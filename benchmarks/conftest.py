"""Implementations are timed in alternating blocks of one process; each test reports one of them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from benchmarks.alternate import block_times

Build = Callable[[], Mapping[str, Callable[[], Any]]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tdheads benchmarks")
    group.addoption("--blocks", type=int, default=15, help="blocks per implementation")
    group.addoption("--block-ms", type=float, default=20, help="length of a block")


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    machine_info["device"], machine_info["torch"] = "CPU", torch.__version__
    machine_info["cpu"].pop("flags", None)  # most of a small file, and nobody reads them


class Rivals:
    """Block times of the rivals that were measured last: their tests follow each other."""

    def __init__(self, blocks: int, block_s: float) -> None:
        self.blocks, self.block_s = blocks, block_s
        self.key: object = None
        self.times: dict[str, list[float]] = {}

    def measure(self, key: object, build: Build) -> dict[str, list[float]]:
        """Time the rivals, if they are not those of the test before."""
        if key != self.key:
            self.times = block_times(build(), blocks=self.blocks, block_s=self.block_s)
            self.key = key
        return self.times


@pytest.fixture(scope="session")
def rivals(pytestconfig: pytest.Config) -> Rivals:
    return Rivals(pytestconfig.getoption("blocks"), pytestconfig.getoption("block_ms") / 1000)


Times = Mapping[str, list[float]]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[Times, str], None]:
    """Give seconds per call, measured elsewhere, to pytest-benchmark."""

    def run(times: Times, impl: str) -> None:
        seconds = times[impl]
        ticks = itertools.chain.from_iterable((0.0, s) for s in seconds)

        def process_time() -> float:  # the JSON file names it
            return next(ticks)

        request.node.add_marker(pytest.mark.benchmark(timer=process_time))
        benchmark = request.getfixturevalue("benchmark")
        # `benchmarks/compare.py` takes what does not depend on tdheads for noise
        benchmark.extra_info["reference"] = impl != "tdheads"
        if impl != "plain":
            shares = [time / plain for time, plain in zip(seconds, times["plain"], strict=True)]
            quartiles = zip(("q1", "median", "q3"), statistics.quantiles(shares, n=4), strict=True)
            benchmark.extra_info["to_plain"] = dict(quartiles)
        benchmark.pedantic(lambda: None, rounds=len(seconds))

    return run


@pytest.fixture
def race(
    request: pytest.FixtureRequest, rivals: Rivals, report: Callable[[Times, str], None]
) -> Callable[[Build], None]:
    """Time the functions that `build` returns by implementation; report that of this test."""

    def run(build: Build) -> None:
        params = dict(request.node.callspec.params)
        impl = params.pop("impl")
        key = request.node.originalname, tuple(params.items())
        report(rivals.measure(key, build), impl)

    return run
