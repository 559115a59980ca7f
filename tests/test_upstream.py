"""The script that runs TorchRL's own tests on our losses, on a checkout of two or three tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tdheads

SCRIPT = Path(__file__).with_name("upstream") / "run_torchrl_ppo.py"
LISTED = "test_ppo_advantage_norm_excludes_masked_rows"
HEADER = """
import pytest
from _objectives_common import _has_transformers
from torchrl.objectives import A2CLoss, ClipPPOLoss

@pytest.mark.skipif(not _has_transformers, reason="requires transformers lib")
class TestPPO:
    @pytest.mark.parametrize("loss_class", [ClipPPOLoss])
    def test_ours(self, loss_class):
        assert loss_class.__module__.startswith("tdheads")
        assert not A2CLoss.__module__.startswith("tdheads")
"""


def run(checkout: Path, tests: str) -> tuple[int, str]:
    folder = checkout / "test" / "objectives"
    folder.mkdir(parents=True)
    (checkout / "pytest.ini").write_text("[pytest]\n")
    (folder / "_objectives_common.py").write_text("_has_transformers = False\n")
    (folder / "test_ppo.py").write_text(HEADER + tests)
    before = sorted(checkout.rglob("*"))
    path = str(Path(tdheads.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, SCRIPT, checkout],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(checkout.rglob("*")) == before, done.stdout
    return done.returncode, done.stdout


def test_it_is_content_where_only_listed_tests_fail(tmp_path: Path) -> None:
    status, output = run(tmp_path / "rl", f"    def {LISTED}(self): assert 0\n")
    assert f"failed: {LISTED}\n    calls a private helper, _scale_advantage\n" in output
    assert output.endswith("1 of 2 passed\n")
    assert status == 0


def test_it_complains_of_a_new_failure_and_of_a_listed_test_that_passes(tmp_path: Path) -> None:
    tests = f"    def {LISTED}(self): pass\n    def test_ppo(self): assert 0\n"
    status, output = run(tmp_path / "rl", tests)
    assert "failed: test_ppo\n    NOT LISTED\n" in output
    assert f"LISTED, BUT PASSED: {LISTED}\n" in output
    assert status == 1


def test_every_exception_has_a_reason() -> None:
    lines = SCRIPT.with_name("exceptions.txt").read_text(encoding="utf-8").splitlines()
    entries = [line.split(maxsplit=1) for line in lines if line and line[0] != "#"]
    assert len(entries) == len({entry[0] for entry in entries}) <= 20
    assert all(len(entry) == 2 for entry in entries)
