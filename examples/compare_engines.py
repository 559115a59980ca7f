"""Frames per second of every engine of `distributed.py`, run in turn, as a table of medians.

    python examples/compare_engines.py --rounds 3 --total-frames 65536

Other words go to `distributed.py`. Ray is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from engines import ENGINES

SCRIPT = Path(__file__).with_name("distributed.py")


def run(engine: str, workers: int, words: list[str]) -> tuple[float, float]:
    """Frames per second while training, and the seconds that it took beside training."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = [sys.executable, *(torchrun if engine == "ddp" else []), str(SCRIPT)]
    command += ["--engine", engine, "--workers", str(workers), *words]
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - start
    last = done.stdout.splitlines()[-1]
    print(last, flush=True)
    frames, fps = map(int, re.findall(r"(\d+) frames", last))
    return fps, seconds - frames / fps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args, words = parser.parse_known_args()
    engines = [e for e in ENGINES if e != "ray" or importlib.util.find_spec("ray")]
    found = [[run(e, args.workers, words) for e in engines] for _ in range(args.rounds)]
    print("| engine | frames per second | seconds to start and to end |\n| --- | --- | --- |")
    for engine, rounds in zip(engines, zip(*found, strict=True), strict=True):
        fps, rest = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| `{engine}` | {fps:,.0f} | {rest:.0f} |")


if __name__ == "__main__":
    main()
