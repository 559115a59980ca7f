"""`examples/distributed.py`: every engine trains, and none hangs when one of its workers dies."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.test_examples import is_missing

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "distributed.py"
#: of a whole run, and from the death of a worker to the end of it
SECONDS, GRACE = 240, 60
ROWS = 20
SMALL = [
    *("--env", "tictactoe"),
    *("--num-envs", "4"),
    *("--frames-per-batch", str(ROWS)),
    *("--minibatch-size", str(ROWS)),
    *("--checkpoint-every", "1"),
]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds them in /proc")
RAY = pytest.param(
    "ray", marks=pytest.mark.skipif(is_missing("ray"), reason='needs pip install "tdheads[ray]"')
)


@contextmanager
def running(*words: object, launcher: list[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A run of which nothing is left when the test ends, and which ends in time."""
    process = subprocess.Popen(
        [sys.executable, *(launcher or []), str(SCRIPT), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    limit = threading.Timer(SECONDS, kill_all, [process])
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        kill_all(process)
        process.wait()
        process.stdout.close()


def kill_all(process: subprocess.Popen[str]) -> None:
    """The workers too, which would keep the pipe open."""
    below = descendants(process.pid)
    process.kill()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> dict[int, str]:
    """The processes below `root`, and their command lines."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            commands[int(folder.name)] = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int(parent)

    def below(pid: int) -> bool:
        return pid in parents and (parents[pid] == root or below(parents[pid]))

    return {pid: commands[pid] for pid in parents if below(pid)}


def read_to(process: subprocess.Popen[str], pattern: str) -> str:
    """What is printed up to the line in which the pattern is found."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return "".join(lines)
    raise AssertionError(f"no {pattern!r} in: {''.join(lines)}")


def kill_one(process: subprocess.Popen[str], engine: str) -> None:
    """Kill one of the two processes that act."""
    mark = {"ddp": SCRIPT.name, "ray": "ray::Collector"}.get(engine, "spawn_main")
    found = [pid for pid, command in descendants(process.pid).items() if mark in command]
    assert len(found) == 2, found
    os.kill(found[-1], signal.SIGKILL)


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("distributed")


@pytest.fixture
def engines(distributed: ModuleType) -> ModuleType:
    return importlib.import_module("engines")


# --- Training --------------------------------------------------------------------------------


def test_a_run_continues_from_its_checkpoint(
    distributed: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--engine", "single", *SMALL, "--out", str(tmp_path)]
    distributed.main([*words, "--total-frames", str(2 * ROWS)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["iteration 1", "iteration 2", "single"]
    assert all("illegal actions 0.00%, first ratio 1.0000" in line for line in lines)
    before = torch.load(tmp_path / "checkpoint.pt")
    distributed.main([*words, "--total-frames", str(3 * ROWS)])
    assert capsys.readouterr().out.startswith(f"iteration 3: {3 * ROWS} frames")
    after = torch.load(tmp_path / "checkpoint.pt")
    assert (before["iteration"], after["iteration"]) == (2, 3)
    step = after["optimizer"]["state"][0]["step"] - before["optimizer"]["state"][0]["step"]
    assert step == 4  # epochs of one minibatch
    assert not list(tmp_path.glob("*.tmp"))


def test_a_seed_gives_a_run(distributed: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def returns(seed: int) -> list[str]:
        words = ["--engine", "single", *SMALL, "--total-frames", str(3 * ROWS)]
        distributed.main([*words, "--seed", str(seed)])
        return re.findall(r"return (\S+),", capsys.readouterr().out)

    first = returns(0)
    assert returns(0) == first
    assert returns(1) != first


def test_old_weights_stop_the_run(distributed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    make = distributed.make_collector

    def forgetful(policy: torch.nn.Module, *args: object) -> object:
        return make(deepcopy(policy), *args)

    monkeypatch.setattr(distributed, "make_collector", forgetful)
    with pytest.raises(SystemExit, match="the workers act with old weights"):
        distributed.main(["--engine", "single", *SMALL, "--total-frames", str(9 * ROWS)])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["async", RAY])
def test_a_run_comes_to_its_end(engine: str) -> None:
    """`multiprocess` shares this with `async`, and `async` the death of its workers with it."""
    with running("--engine", engine, *SMALL, "--total-frames", 3 * ROWS) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0, printed
    lines = [line for line in printed.splitlines() if "first ratio" in line]
    names = ["iteration 1", "iteration 2", "iteration 3", engine]
    assert [line.split(":")[0] for line in lines] == names, printed
    assert all("illegal actions 0.00%" in line for line in lines)
    assert "Traceback" not in printed


# --- A worker is killed ----------------------------------------------------------------------


def test_the_death_of_a_process_ends_a_wait_for_it(engines: ModuleType) -> None:
    """`update_policy_weights_` waits in this way, but without a limit."""
    context = get_context("spawn")
    process, answers = context.Process(target=time.sleep, args=(SECONDS,)), context.Queue()
    process.start()
    threading.Timer(0.2, process.kill).start()
    try:
        with pytest.raises(engines.WorkerDied, match="worker 0 died"), engines.watching([process]):
            answers.get(timeout=GRACE)
    finally:
        process.kill()
        process.join()


@NEEDS_PROC
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["multiprocess", RAY])
def test_the_death_of_a_worker_ends_the_run(
    engine: str, distributed: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--engine", engine, *SMALL, "--total-frames", 10**9, "--out", tmp_path]
    with running(*words) as process:
        trained = read_to(process, "^iteration 3:")
        kill_one(process, engine)
        start = time.monotonic()
        printed, _ = process.communicate()
    assert time.monotonic() - start < GRACE
    assert process.returncode == 1
    # its workers had the weights of the learner
    assert trained.count("illegal actions 0.00%, first ratio 1.0000") == 3
    died = "a Ray worker died" if engine == "ray" else "worker [01] died"
    assert re.search(
        rf"^distributed.py: {died}.*; the same command continues from {tmp_path}$",
        printed,
        re.MULTILINE,
    ), printed
    # any engine continues
    reached = torch.load(tmp_path / "checkpoint.pt")["iteration"]
    assert reached >= 3
    words = ["--engine", "single", *SMALL, "--total-frames", str((reached + 1) * ROWS)]
    distributed.main([*words, "--out", str(tmp_path)])
    assert capsys.readouterr().out.startswith(f"iteration {reached + 1}:")


@NEEDS_PROC
@pytest.mark.slow
def test_torchrun_starts_over_from_the_checkpoint(tmp_path: Path) -> None:
    iterations = 60
    words = ["--engine", "ddp", *SMALL, "--total-frames", iterations * ROWS, "--out", tmp_path]
    with running(*words, launcher=[*TORCHRUN, "--max-restarts=1"]) as process:
        read_to(process, "^iteration 3:")
        kill_one(process, "ddp")
        start = time.monotonic()
        read_to(process, r"failed \(exitcode: -9\)")
        resumed = read_to(process, "^iteration")
        assert time.monotonic() - start < GRACE
        rest, _ = process.communicate()
    assert process.returncode == 0, rest
    trained = [int(i) for i in re.findall(r"^iteration (\d+):", resumed + rest, re.MULTILINE)]
    assert 4 <= trained[0] < iterations  # it was killed before its end, and did not begin again
    assert trained == list(range(trained[0], iterations + 1))
    (line,) = re.findall("^ddp: .*", rest, re.MULTILINE)
    assert line.startswith(f"ddp: {iterations * ROWS} frames")
    assert "illegal actions 0.00%, first ratio 1.0000" in line
