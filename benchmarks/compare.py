"""The benchmarks of two revisions as one markdown comment; bare Python is enough.

    python benchmarks/compare.py base.json head.json
    python benchmarks/compare.py --base b1.json b2.json b3.json --head h1.json h2.json h3.json

Each file is one run of pytest-benchmark. Several per side are rounds that alternated on one
machine, in this order: b1 h1 b2 h2 b3 h3. Then

* the change of a benchmark is the median over the rounds of base median / head median - 1: what
  ran faster is positive, as for operations per second. If every benchmark says what multiple of
  plain PyTorch's time it takes, block by alternating block (`extra_info["to_plain"]`), the
  medians are those of the multiples: what else the machine does cancels;
* the noise floor is what runs of the same code differ by: the rounds of one side among each other
  (an A/A run), and the benchmarks that are marked as references (`extra_info["reference"]`: other
  libraries, plain PyTorch). 95% of these differences are below it. Two rounds tell less:
  it is twice the largest. One round tells nothing of how processes differ: it is at least 25%;
* a benchmark improved or worsened if in every round it changed in one direction, beyond the floor
  and beyond what its own rounds differ by (with one round: its own quartiles).

References are counted in one line and not listed. The first line of the comment is the marker
`<!-- tdheads benchmarks: CPU -->` (or GPU): whoever posts it edits the comment that begins so.
Errors are one line, with exit code 2; worse benchmarks are none.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 65_000  # GitHub takes 65,536 characters, and the comment script adds a few
MINIMUM = math.log(1.05)  # no floor is below: nobody acts on less
ONE_ROUND = math.log(1.25)  # processes that ran the same code differed by 17% on a busy machine
QUANTILE = 0.95
MOST, WIDEST = 20, 120  # names in a list, characters of a name
RELATIVE = "The change is that of the time as a multiple of plain PyTorch's in the same process."
GREEN, RED, AMBER = "#35bf28", "#d91a1a", "#D29922"


class FaultError(Exception):
    """What the user has to be told, in one line."""


class Quartiles(NamedTuple):
    low: float
    median: float
    high: float


class Stat(NamedTuple):
    """Seconds per call, also as a multiple of plain PyTorch's; is it a reference?"""

    time: Quartiles
    mean: float
    longest: float
    reference: bool
    to_plain: Quartiles | None = None


class Run(NamedTuple):
    """One file."""

    stats: dict[str, Stat]
    machine: dict[str, str]
    commit: str


class Row(NamedTuple):
    """One benchmark on both sides. Changes are logs of ratios, positive where head is faster."""

    name: str
    base: list[Stat]
    head: list[Stat]
    changes: list[float]
    noise: list[float]

    @property
    def change(self) -> float:
        return statistics.median(self.changes) if self.changes else 0.0

    def verdict(self, floor: float) -> int:
        """Return 1 for improved, -1 for worsened, 0 for neither."""
        beyond = max([floor, *self.noise])
        if not self.changes or min(map(abs, self.changes)) <= beyond:
            return 0
        # rounds with changes of both signs are that far apart themselves
        return int(math.copysign(1, self.change))


# ---- reading


def load(path: str) -> Run:
    """Read a file of pytest-benchmark."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FaultError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FaultError(f"{path}: no whole JSON file ({error})") from error
    try:
        found = [(str(bench["name"]), _stat(bench)) for bench in data["benchmarks"]]
        machine, commit = data.get("machine_info") or {}, data.get("commit_info") or {}
        run = Run(dict(found), _machine(machine), str(commit.get("id") or "unknown"))
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise FaultError(f"{path}: not written by pytest-benchmark ({what})") from error
    if not found:
        raise FaultError(f"{path}: no benchmarks in it; did the run fail?")
    if len(run.stats) < len(found):
        raise FaultError(f"{path}: two benchmarks have one name; rename one of them")
    return run


def _stat(bench: dict[str, Any]) -> Stat:
    stats, extra = bench["stats"], bench.get("extra_info") or {}
    time, to_plain = _quartiles(stats), extra.get("to_plain")
    mean, longest = float(stats["mean"]), float(stats["max"])
    shares = None if to_plain is None else _quartiles(to_plain)
    found = [*time, mean, longest, *(shares or ())]
    if not all(x == 0 or 1e-15 < x < 1e9 for x in found):
        raise ValueError(f"{bench['name']!r} took {found}")
    return Stat(time, mean, longest, bool(extra.get("reference")), shares)


def _quartiles(stats: dict[str, Any]) -> Quartiles:
    return Quartiles(*(float(stats[name]) for name in ("q1", "median", "q3")))


def _machine(info: dict[str, Any]) -> dict[str, str]:
    """Return what has to be equal for two runs to be comparable."""
    cpu = info.get("cpu") or {}
    names = ("node", "system", "machine", "python_version", "torch", "device")
    found = {name: str(info[name]) for name in names if name in info}
    return found | ({"cpu": str(cpu["brand_raw"])} if "brand_raw" in cpu else {})


# ---- comparing


def row_of(name: str, base: Sequence[Run], head: Sequence[Run], relative: bool) -> Row:
    """Compare one benchmark round by round."""
    old, new = ([run.stats[name] for run in runs] for runs in (base, head))
    a, b = ([s.to_plain if relative else s.time for s in side] for side in (old, new))
    noise = [abs(x) for side in (a, b) for x in changes_of(pairwise(side))]
    if len(old) == 1:
        noise = [math.log(q.high / q.low) for q in (*a, *b) if q.low and q.high]
    return Row(name, old, new, changes_of(zip(a, b, strict=True)), noise)


def changes_of(pairs: Iterable[tuple[Quartiles, Quartiles]]) -> list[float]:
    """Return the logs of the ratios of medians; what took no measurable time has none."""
    return [math.log(a.median / b.median) for a, b in pairs if a.median > 0 and b.median > 0]


def noise_floor(rows: Sequence[Row], rounds: int) -> float:
    """Return what runs of the same code differ by, as a log."""
    differences = [abs(row.change) for row in rows if row.head[0].reference and row.changes]
    if rounds == 1:
        return max(ONE_ROUND, 2 * max(differences, default=0))
    differences = sorted([*differences, *(x for row in rows for x in row.noise)])
    if not differences:
        return ONE_ROUND
    if rounds == 2:
        return max(MINIMUM, 2 * differences[-1])
    return max(MINIMUM, differences[math.ceil(QUANTILE * len(differences)) - 1])


# ---- writing


def seconds(time: float) -> str:
    """Write a time in the unit that suits it."""
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if time >= size:
            return f"{time / size:.4g} {unit}"
    return f"{time * 1e9:.4g} ns"


def operations(time: float) -> str:
    """Write how often something that takes `time` runs in a second."""
    if not time:
        return "-"
    for unit, size in (("GOps/s", 1e9), ("MOps/s", 1e6), ("KOps/s", 1e3)):
        if 1 / time >= size:
            return f"{1 / time / size:.4g} {unit}"
    return f"{1 / time:.4g} Ops/s"


def percent(change: float) -> float:
    return 100 * math.expm1(change)


def coloured(row: Row, floor: float) -> str:
    """Write the change of a row; bold if it counts."""
    if not row.changes:
        return "-"
    change = percent(row.change)
    text = rf"\color{{{GREEN if change >= 0 else RED}}}{change:+.2f}\%"
    return rf"$\textbf{{{text}}}$" if row.verdict(floor) else f"${text}$"


def code(text: str) -> str:
    """Quote a name so that nothing in it is markdown, in a table either."""
    text = " ".join(text.encode(errors="replace").decode().split())
    text = text if len(text) <= WIDEST else text[:WIDEST] + "..."
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", r"\|")


def table_row(row: Row, floor: float) -> str:
    cells = [
        code(row.name),
        seconds(max(s.longest for s in row.head)),
        seconds(statistics.mean(s.mean for s in row.head)),
        operations(statistics.median(s.time.median for s in row.head)),
        operations(statistics.median(s.time.median for s in row.base)),
        coloured(row, floor),
    ]
    return "| " + " | ".join(cells) + " |"


def listed(title: str, names: Sequence[str]) -> list[str]:
    """List benchmarks that one side only has."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return [f"{title}: {', '.join(map(code, names[:MOST]))}{more}", ""] if names else []


class Comparison:
    """Two sides with equally many rounds."""

    def __init__(self, base: Sequence[Run], head: Sequence[Run]) -> None:
        self.runs = [*base, *head]
        self.commits = base[0].commit, head[0].commit
        self.rounds = len(base)
        old, new = (set.intersection(*(set(run.stats) for run in side)) for side in (base, head))
        common = [name for name in head[0].stats if name in old & new]
        ours = [name for name in common if not head[0].stats[name].reference]
        shared = {n for n in common if all(run.stats[n].to_plain for run in self.runs)}
        self.relative = bool(ours) and shared.issuperset(ours)
        rows = [
            row_of(name, base, head, self.relative)
            for name in common
            if name in shared or not self.relative
        ]
        self.added, self.removed = sorted(new - old), sorted(old - new)
        self.partly = sorted({name for run in self.runs for name in run.stats} - old - new)
        self.floor = noise_floor(rows, self.rounds)
        self.references = [row_of(n, base, head, False).change for n in common if n not in ours]
        tested = [row for row in rows if not row.head[0].reference]
        self.rows = sorted(tested, key=lambda row: row.change)
        verdicts = [row.verdict(self.floor) for row in tested]
        self.improved, self.worsened = verdicts.count(1), verdicts.count(-1)

    def comment(self) -> str:
        """Return the comment, with as many rows as there is room for."""
        keep = len(self.rows)
        while len((text := self._comment(keep)).encode()) > LIMIT and keep:
            keep = keep * 19 // 20
        return text

    def _comment(self, keep: int) -> str:
        device = self.runs[-1].machine.get("device", "CPU")
        device = device if device == "CPU" else "GPU"
        sign, word, colour = ("⚠", "Warning", AMBER) if self.worsened else ("✔", "OK", GREEN)
        mark = rf"$\color{{{colour}}}\textsf{{\Large{sign}\kern{{0.2cm}}\normalsize {word}}}$"
        improved, worsened = (
            rf"$\large\color{{{colour}}}{count}$"
            for colour, count in ((GREEN, self.improved), (RED, self.worsened))
        )
        return "\n".join(
            [
                f"<!-- tdheads benchmarks: {device} -->",
                f"## {mark} Result of {device} Benchmark Tests",
                "",
                f"Total Benchmarks: {len(self.rows)}. Improved: {improved}. Worsened: {worsened}.",
                "",
                self._noise(),
                "",
                *self._mismatches(),
                *listed("New", self.added),
                *listed("Removed", self.removed),
                *listed("Not in every round", self.partly),
                "<details>",
                "<summary>Expand to view detailed results</summary>",
                "",
                *([RELATIVE, ""] if self.relative else []),
                *self._table(keep),
                "",
                "</details>",
                "",
            ]
        )

    def _noise(self) -> str:
        base, head = (code(commit[:12]) for commit in self.commits)
        rounds = "One round" if self.rounds == 1 else f"{self.rounds} alternating rounds"
        floor = (
            f"Noise floor: {percent(self.floor):.1f}%, by which the same code differs from itself."
        )
        text = f"{floor} {rounds} of base {base} and head {head}"
        if not self.references:
            return text + "."
        median = percent(statistics.median(self.references))
        count = len(self.references)
        return f"{text}; {count} references, no part of tdheads, moved by {median:+.1f}% (median)."

    def _mismatches(self) -> list[str]:
        """Warn if the runs are not of one machine and environment."""
        found = {}
        for name in dict.fromkeys(name for run in self.runs for name in run.machine):
            values = sorted({run.machine.get(name, "unknown") for run in self.runs})
            if len(values) > 1:
                found[name] = " and ".join(map(code, values))
        if not found:
            return []
        differ = "; ".join(f"{name}: {values}" for name, values in found.items())
        return ["> [!WARNING]", f"> The runs differ in more than the revision: {differ}", ""]

    def _table(self, keep: int) -> list[str]:
        """Return the table; where it has to be cut, the smallest changes go."""
        counts = {row.name for row in self.rows if row.verdict(self.floor)}
        largest = sorted(self.rows, key=lambda r: (r.name in counts, abs(r.change)), reverse=True)
        left_out = largest[keep:]
        kept = {row.name for row in largest[:keep]}
        rows = [row for row in self.rows if row.name in kept]
        lines = [
            "| Name | Max | Mean | Ops | Ops on base | Change |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            *(table_row(row, self.floor) for row in rows),
        ]
        if left_out:
            limit = max(abs(percent(row.change)) for row in left_out)
            what = f"{len(left_out)} of {len(self.rows)} benchmarks, which changed least"
            lines += ["", f"Cut to fit into a comment: {what} (by {limit:.2f}% at most)."]
        return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="base.json head.json")
    parser.add_argument("--base", nargs="+", metavar="FILE", default=[], help="rounds of the base")
    parser.add_argument("--head", nargs="+", metavar="FILE", default=[], help="rounds of the head")
    options = parser.parse_args(arguments)
    base, head = options.base or options.files[:1], options.head or options.files[1:]
    try:
        if options.files and (options.base or options.head):
            raise FaultError("give base.json head.json, or --base and --head, not both")
        if not base or len(base) != len(head):
            counts = f"{len(base)} and {len(head)}"
            raise FaultError(f"expected as many files of the base as of the head, got {counts}")
        comment = Comparison([load(path) for path in base], [load(path) for path in head]).comment()
    except FaultError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    print(comment)
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale is
    sys.exit(main())
