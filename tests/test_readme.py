"""Every block of the README runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

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
