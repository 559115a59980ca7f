"""Times two functions in alternating blocks of one process, and compares block by block."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """How long one function takes, as a share of another: median and quartiles over the blocks."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def block_times(
    runs: Mapping[str, Callable[[], Any]], blocks: int = 60, block_s: float = 0.02
) -> dict[str, list[float]]:
    """Seconds of processor time of one call, per block.

    The blocks of all functions alternate, each in every place, so that what else the machine does
    meets all of them; time in which the process waits for a processor is not counted. A block takes
    about ``block_s``.
    """
    calls = {}
    for name, run in runs.items():
        for _ in range(3):
            run()
        calls[name] = max(1, round(block_s / _time(run, 3)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    gc.collect()
    gc.disable()  # a collection would hit one function or the other
    try:
        order = list(runs)
        for _ in range(blocks):
            for name in order:
                runs[name]()  # what ran before left its own memory in the caches
                times[name].append(_time(runs[name], calls[name]))
            gc.collect()
            order = order[1:] + order[:1]
    finally:
        gc.enable()
    return times


def _time(run: Callable[[], Any], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> Ratio:
    """Time of ``name`` as a share of that of ``base``, block by block."""
    shares = [a / b for a, b in zip(times[name], times[base], strict=True)]
    low, median, high = statistics.quantiles(shares, n=4)
    return Ratio(median, low, high)
