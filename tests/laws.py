"""Write ``docs/laws.md``, the table of laws: ``python -m tests.laws``.

A law is a test that runs over the cases of ``tests/cases.py`` or ``tests/joint.py``; what it runs
over is read off its ``parametrize`` mark.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases import DISCRETE, HEADS
from tests.joint import JOINTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "laws.md"
TABLES = {
    "heads": ("Heads", HEADS),
    "distributions": ("Finite distributions", DISCRETE),
    "joints": ("Heads with several leaves, against enumeration", JOINTS),
}
INTRO = """# Laws and what they run over

Written by `python -m tests.laws`; a test keeps it up to date. A law is a test that runs over a
table of cases, so that a new head or distribution is one more line in the table and has to obey
them all. Two more laws send every head at once: `test_heads` to another process, `test_collectors`
to the workers of a `MultiSyncCollector`. Continuous distributions have test files of their own.
Laws of `test_losses` and `test_diagnose` run over every loss too.
"""


def names_of(mark: Any) -> list[str] | None:
    """Names of the cases that a ``parametrize`` mark lists, if it lists cases."""
    if mark.name != "parametrize" or "case" not in str(mark.args[0]):
        return None
    values = [value[0] if isinstance(value, tuple) else value for value in mark.args[1]]
    names = [getattr(value, "name", None) for value in values]
    return None if None in names else list(dict.fromkeys(map(str, names)))


def laws() -> Iterator[tuple[str, str, list[str]]]:
    """File, name and cases of every law."""
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        try:
            module = importlib.import_module(f"tests.{path.stem}")
        except pytest.skip.Exception:  # of a client that is not installed
            continue
        for name, test in vars(module).items():
            if name.startswith("test_") and getattr(test, "__module__", "") == module.__name__:
                for mark in getattr(test, "pytestmark", []):
                    if (cases := names_of(mark)) is not None:
                        yield path.stem, name, cases


def shown(cases: list[str], known: list[str]) -> str:
    """The cases in few words."""
    rest = [name for name in known if name not in cases]
    if not rest:
        return "all"
    return "all but " + ", ".join(rest) if len(rest) < len(cases) else ", ".join(cases)


def page() -> str:
    """The whole page."""
    parts, found = [INTRO], list(laws())
    for table, (title, cases) in TABLES.items():
        known = [case.name for case in cases]
        parts += [f"\n## {title}\n", f"Cases: {', '.join(known)}.\n", "| law | test file | cases |"]
        parts.append("| --- | --- | --- |")
        for file, name, names in found:
            if table_of(file, names) == table:
                law = name.removeprefix("test_").replace("_", " ")
                parts.append(f"| {law} | `{file}` | {shown(names, known)} |")
    return "\n".join(parts) + "\n"


def table_of(file: str, names: list[str]) -> str:
    """Which table the cases of a law belong to."""
    if set(names) <= {case.name for case in JOINTS} and file == "test_joint":
        return "joints"
    return "heads" if set(names) <= {case.name for case in HEADS} else "distributions"


if __name__ == "__main__":
    PAGE.write_text(page())
