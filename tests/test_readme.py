"""Every block of the README runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_examples import SMALL, is_missing

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
BASH = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in
        block.splitlines()]  # fmt: skip


@pytest.mark.parametrize("number", range(1, len(PYTHON)))
def test_python_blocks_run(number: int) -> None:
    exec(compile(PYTHON[number], f"README.md block {number}", "exec"), {})


def test_the_policy_of_the_first_block_learns() -> None:
    names: dict[str, object] = {}
    exec(compile(PYTHON[0], "README.md block 0", "exec"), names)
    assert float(names["mean"]) > 0.75  # type: ignore[arg-type]  # a random player gets about 0.55


def test_every_file_and_make_target_in_the_commands_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    checked = 0
    for line in BASH:
        words = shlex.split(line, comments=True)
        for word in words:
            if word.endswith((".py", ".txt")):
                assert (ROOT / word).is_file(), line
                checked += 1
        if words and words[0] == "make":
            assert words[1] in targets, line
            checked += 1
    assert checked >= 6


@pytest.mark.skipif(
    any(map(is_missing, ("tqdm", "matplotlib", "gymnasium"))),
    reason='the script needs pip install "tdheads[examples]"',
)
def test_the_commands_that_train_run_one_after_the_other(tmp_path: Path) -> None:
    """As they stand, but for a budget of a few frames; ``.ci/run`` trains ``make demo`` whole."""
    commands = [shlex.split(line, comments=True) for line in BASH]
    commands = [words for words in commands if words[1:2] == ["examples/train.py"]]
    assert len(commands) >= 4
    for words in commands:
        small = [] if "--resume" in words else [*SMALL, "--total-frames", "40"]
        done = subprocess.run(
            [sys.executable, str(ROOT / words[1]), *words[2:], *small],
            capture_output=True,
            text=True,
            timeout=250,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        if "--help" not in words:
            assert "illegal actions 0.00%" in done.stdout.splitlines()[-1]
