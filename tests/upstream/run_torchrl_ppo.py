"""Run TorchRL's own PPO tests on the losses of tdheads.

    git clone --branch v0.14.1 https://github.com/pytorch/rl ../rl
    .venv/bin/python tests/upstream/run_torchrl_ppo.py ../rl [pytest options, e.g. -k clipping -x]

runs class ``TestPPO`` of ``test/objectives/test_ppo.py`` with the losses of tdheads in the place of
TorchRL's. The checkout is read, never changed; it should be of the installed TorchRL's version.

``exceptions.txt``, next to this file, lists the tests that may fail, each with its reason. The exit
status is 1 if another test fails or if a listed one passes, so the list is always the whole truth;
a listed test that the checkout does not have counts for nothing.
``make test`` does not run this: it needs the checkout.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest
import torchrl.objectives

import tdheads

LOSSES = ("PPOLoss", "ClipPPOLoss", "KLPENPPOLoss")
EXCEPTIONS = Path(__file__).with_name("exceptions.txt")


class Swap:
    """The pytest plugin: puts our losses in the place of theirs, and keeps the outcomes."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.names = folder, names
        #: test -> whether it passed
        self.passed: dict[str, bool] = {}

    def pytest_collection(self) -> None:
        sys.path.insert(0, str(self.folder))
        import _objectives_common

        # all of TestPPO is skipped without transformers, which none of it needs
        _objectives_common._has_transformers = True
        # before the test module is imported: its decorators read the names
        for name in self.names:
            setattr(torchrl.objectives, name, getattr(tdheads, name))

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = report.nodeid.partition("TestPPO::")[2]
        if report.when == "call":
            self.passed[test] = report.passed
        elif not report.passed:  # setup or teardown
            self.passed[test] = False


def read_exceptions() -> dict[str, str]:
    """Return test -> why it may fail."""
    lines = map(str.strip, EXCEPTIONS.read_text(encoding="utf-8").splitlines())
    rows = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    for row in rows:
        if len(row) != 2:
            raise ValueError(f"{EXCEPTIONS.name}: no reason for {row[0]}")
    return dict(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run TorchRL's TestPPO on the losses of tdheads.")
    parser.add_argument("checkout", type=Path, help="of https://github.com/pytorch/rl")
    args, options = parser.parse_known_args()
    folder = args.checkout.resolve() / "test" / "objectives"
    if not (folder / "test_ppo.py").is_file():
        parser.error(f"there is no {folder / 'test_ppo.py'}")

    sys.dont_write_bytecode = True
    ours = [name for name in LOSSES if hasattr(tdheads, name)]
    swap = Swap(folder, ours)
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    status = pytest.main([f"{folder / 'test_ppo.py'}::TestPPO", *quiet, *options], plugins=[swap])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return int(status)

    exceptions = read_exceptions()
    failed = [test for test, passed in swap.passed.items() if not passed]
    surprising = [test for test in failed if test not in exceptions]
    stale = [test for test in exceptions if swap.passed.get(test)]
    print(f"\nlosses of tdheads: {', '.join(ours)}")
    if theirs := [name for name in LOSSES if name not in ours]:
        print(f"losses of TorchRL, which tdheads does not have: {', '.join(theirs)}")
    for test in failed:
        print(f"failed: {test}\n    {exceptions.get(test, 'NOT LISTED')}")
    for test in stale:
        print(f"LISTED, BUT PASSED: {test}")
    print(f"{sum(swap.passed.values())} of {len(swap.passed)} passed")
    return int(bool(surprising or stale))


if __name__ == "__main__":
    sys.exit(main())
