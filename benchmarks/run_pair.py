"""Benchmarks of a revision and of the working tree in alternating rounds, as one markdown comment.

    python benchmarks/run_pair.py main
    python benchmarks/run_pair.py main --rounds 5 -- -k 'clip and hybrid'

Both run in this environment, with the benchmarks of the working tree: a revision that lacks what a
benchmark uses fails it, and the comment lists it as new. What stands behind `--` goes to pytest.
The files (`base1.json`, `head1.json`, ..., `comment.md`) lie in `--out`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*args: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, encoding="utf-8")
    if done.returncode:
        sys.exit(f"run_pair.py: git {' '.join(args)}: {done.stderr.strip().splitlines()[-1]}")


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Check the revision out in a temporary worktree, with the benchmarks of this one."""
    with tempfile.TemporaryDirectory(prefix="tdheads-base-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), revision)
        try:
            shutil.rmtree(tree / "benchmarks", ignore_errors=True)
            shutil.copytree(ROOT / "benchmarks", tree / "benchmarks")
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def bench(tree: Path, out: Path, args: list[str]) -> int:
    """Run the suite in a tree; return pytest's exit code."""
    pytest = [sys.executable, "-m", "pytest", "-c", "benchmarks/pytest.ini", "--rootdir", "."]
    command = [*pytest, "benchmarks", "--tb=line", f"--benchmark-json={out}", *args]
    # an installed tdheads is that of one revision only
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    code = subprocess.run(command, cwd=tree, env=env, stdout=sys.stderr).returncode
    if code > 1 or not out.is_file() or not out.stat().st_size:
        sys.exit(f"run_pair.py: pytest ended with {code} and no figures in {tree}")
    return code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="revision to compare the working tree with")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="folder")
    own = sys.argv[1:]
    cut = own.index("--") if "--" in own else len(own)
    options, for_pytest = parser.parse_args(own[:cut]), own[cut + 1 :]
    if options.rounds < 1:
        parser.error("--rounds: expected at least 1")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with checkout(options.base) as base:
        for i in range(1, options.rounds + 1):
            bench(base, out / f"base{i}.json", for_pytest)
            failed |= bench(ROOT, out / f"head{i}.json", for_pytest)
    files = {
        side: [str(out / f"{side}{i}.json") for i in range(1, options.rounds + 1)]
        for side in ("base", "head")
    }
    compare = [sys.executable, str(ROOT / "benchmarks/compare.py")]
    comment = subprocess.run(
        [*compare, "--base", *files["base"], "--head", *files["head"]],
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ).stdout
    (out / "comment.md").write_text(comment, encoding="utf-8")
    print(comment)
    sys.exit(failed)


if __name__ == "__main__":
    main()
