"""The comment on a pull request, from real files of two revisions and from damaged ones."""

from __future__ import annotations

import copy
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare

DATA = Path(__file__).parent / "data"  # its README says how the files were made
BASE = [DATA / f"base{i}.json" for i in (1, 2, 3)]
HEAD = [DATA / f"head{i}.json" for i in (1, 2, 3)]
OURS = "test_loss[clip-hybrid-64-forward+backward-tdheads]"
Json = dict[str, Any]


def read(path: Path) -> Json:
    return json.loads(path.read_text())


def comment(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert compare.main([str(arg) for arg in args]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def rounds(capsys: pytest.CaptureFixture[str], base: list[Path], head: list[Path]) -> str:
    return comment(capsys, "--base", *base, "--head", *head)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Json], Path]:
    def run(name: str, data: Json) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(data))
        return path

    return run


def scaled(data: Json, factor: float, *names: str) -> Json:
    """Return the file with the times of some benchmarks multiplied."""
    data = copy.deepcopy(data)
    for bench in data["benchmarks"]:
        if bench["name"] in names:
            for name in ("min", "max", "mean", "median", "q1", "q3"):
                bench["stats"][name] *= factor
    return data


def quiet(factors: dict[str, float], reference: float = 1.0) -> Json:
    """Return a file like a real one, with times of exactly 1 ms times a factor."""
    data = copy.deepcopy(read(HEAD[0]))
    one = data["benchmarks"][0]
    data["benchmarks"] = []
    for name, factor in {**factors, "test_reference": reference}.items():
        bench = copy.deepcopy(one)
        bench["name"], bench["extra_info"] = name, {"reference": name == "test_reference"}
        for stat in ("min", "max", "mean", "median", "q1", "q3"):
            bench["stats"][stat] = 1e-3 * factor
        data["benchmarks"].append(bench)
    return data


def table(text: str) -> dict[str, list[str]]:
    """Return the cells of the table by name."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    return {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in cells}


# ---- real files


def test_two_revisions(capsys: pytest.CaptureFixture[str]) -> None:
    text = rounds(capsys, BASE, HEAD)
    lines = text.splitlines()
    assert lines[0] == "<!-- tdheads benchmarks: CPU -->"
    assert lines[1].endswith("Result of CPU Benchmark Tests")
    assert lines[3].startswith("Total Benchmarks: 2. Improved: $")
    assert "<summary>Expand to view detailed results</summary>" in lines
    assert "| Name | Max | Mean | Ops | Ops on base | Change |" in lines
    files = [[{b["name"]: b for b in read(p)["benchmarks"]} for p in side] for side in (BASE, HEAD)]
    (new,) = [line for line in lines if line.startswith("New: ")]
    assert re.findall("`(.*?)`", new) == sorted(set(files[1][0]) - set(files[0][0]))
    # the change is the median over the rounds of how the multiple of plain PyTorch's time changed
    shares = [[f[OURS]["extra_info"]["to_plain"]["median"] for f in side] for side in files]
    change = 100 * (statistics.median(b / h for b, h in zip(*shares, strict=True)) - 1)
    longest, _, ops, ops_on_base, shown = table(text)[OURS]
    assert f"{change:+.2f}\\%" in shown
    assert longest == f"{1e3 * max(h[OURS]['stats']['max'] for h in files[1]):.4g} ms"
    medians = [statistics.median(f[OURS]["stats"]["median"] for f in side) for side in files]
    assert [ops_on_base, ops] == [f"{1 / median:.4g} Ops/s" for median in medians]


def test_the_multiple_of_plain_is_what_alternating_blocks_give() -> None:
    for path in (*BASE, *HEAD):
        found = {b["name"]: b for b in read(path)["benchmarks"]}
        plain = found[OURS.replace("tdheads", "plain")]["stats"]["data"]
        shares = [t / p for t, p in zip(found[OURS]["stats"]["data"], plain, strict=True)]
        stored = found[OURS]["extra_info"]["to_plain"]
        assert statistics.median(shares) == pytest.approx(stored["median"])


def test_one_revision_is_neither_better_nor_worse(capsys: pytest.CaptureFixture[str]) -> None:
    for side in (BASE, HEAD):
        for a, b in ((0, 1), (0, 2), (1, 2)):
            for pair in ((side[a], side[b]), (side[b], side[a])):
                text = comment(capsys, *pair)
                assert verdicts(text) == (0, 0)
                assert "OK}$ Result" in text
    text = rounds(capsys, HEAD, HEAD)
    assert table(text)[OURS][-1] == "$\\color{#35bf28}+0.00\\%$"


# ---- what counts


def verdicts(text: str) -> tuple[int, int]:
    (line,) = [line for line in text.splitlines() if line.startswith("Total Benchmarks: ")]
    improved, worsened = re.findall(r"color\{#\w+\}(\d+)\$", line)
    return int(improved), int(worsened)


def test_worse_and_better_are_counted_marked_and_sorted(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    base = write("base", quiet({"same": 1, "slower": 1, "faster": 1}))
    head = write("head", quiet({"same": 1.01, "slower": 1.5, "faster": 0.5}))
    text = comment(capsys, base, head)
    assert verdicts(text) == (1, 1)
    assert "⚠" in text.splitlines()[1]
    assert "Warning}$ Result of CPU" in text.splitlines()[1]
    assert {name: cells[-1] for name, cells in table(text).items()} == {
        "slower": r"$\textbf{\color{#d91a1a}-33.33\%}$",
        "same": r"$\color{#d91a1a}-0.99\%$",
        "faster": r"$\textbf{\color{#35bf28}+100.00\%}$",
    }
    assert list(table(text)) == ["slower", "same", "faster"]
    assert table(text)["slower"][:4] == ["1.5 ms", "1.5 ms", "666.7 Ops/s", "1 KOps/s"]


def test_references_tell_the_noise_and_are_not_listed(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    base = write("base", quiet({"a": 1.0}))
    for reference, expected in ((1.0, (0, 1)), (1.2, (0, 0))):
        text = comment(capsys, base, write("head", quiet({"a": 1.4}, reference)))
        assert verdicts(text) == expected
        assert "`test_reference`" not in text
        # twice what the reference moved by, and never below 25%
        floor = 100 * (max(reference**2, 1.25) - 1)
        assert f"Noise floor: {floor:.1f}%" in text


def test_rounds_of_one_side_tell_the_noise(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    def run(base: list[float], head: list[float]) -> str:
        files = [
            [write(f"{side}{i}", quiet({"a": t, "b": 1.0})) for i, t in enumerate(times)]
            for side, times in (("base", base), ("head", head))
        ]
        return rounds(capsys, *files)

    assert verdicts(run([1, 1, 1], [1.2, 1.2, 1.2])) == (0, 1)
    assert verdicts(run([1, 1, 1], [1.2, 1.2, 1.0])) == (0, 0)  # not in every round
    assert verdicts(run([1, 1, 1], [1.2, 1.2, 0.8])) == (0, 0)
    assert verdicts(run([1, 1.3, 1], [1.2, 1.56, 1.2])) == (0, 0)  # it differs from itself by more
    assert table(run([1, 2, 4], [2, 3, 4]))["a"][-1].endswith(r"-33.33\%$")  # of -50, -33, 0


def test_the_floor_has_95_of_100_differences_below_it() -> None:
    stat = compare.Stat(compare.Quartiles(1.0, 1.0, 1.0), 1.0, 1.0, False)
    rows = [compare.Row("a", [stat], [stat], [0.0], [0.01 * i]) for i in range(1, 101)]
    assert compare.noise_floor(rows, rounds=3) == pytest.approx(0.95)
    assert compare.noise_floor(rows, rounds=2) == pytest.approx(2.0)
    assert compare.noise_floor([], rounds=3) == compare.noise_floor([], rounds=1) > 0.2


def test_a_busy_machine_does_not_make_all_worse(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    def shares(data: Json, **medians: float) -> Json:
        for bench in data["benchmarks"]:
            median = medians.get(bench["name"], 4.0)
            bench["extra_info"]["to_plain"] = {"q1": median, "median": median, "q3": median}
        return data

    base = write("base", shares(quiet({"a": 1.0, "b": 1.0}), a=2.0, b=2.0))
    head = write("head", shares(quiet({"a": 1.5, "b": 1.8}, reference=1.5), a=2.0, b=2.8))
    text = comment(capsys, base, head)
    assert "multiple of plain PyTorch's" in text
    assert verdicts(text) == (0, 1)
    assert table(text)["a"][2:] == ["666.7 Ops/s", "1 KOps/s", r"$\color{#35bf28}+0.00\%$"]
    assert table(text)["b"][-1] == r"$\textbf{\color{#d91a1a}-28.57\%}$"
    assert "1 references, no part of tdheads, moved by -33.3% (median)" in text


def test_quartiles_that_overlap_do_not_count_in_a_single_round(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    head = quiet({"a": 1.3})
    head["benchmarks"][0]["stats"].update(q1=0.9e-3, q3=1.4e-3)
    assert verdicts(comment(capsys, write("b", quiet({"a": 1.0})), write("h", head))) == (0, 0)


def test_what_one_side_has_is_new_or_removed(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    base, head = write("base", quiet({"a": 1, "old": 1})), write("head", quiet({"a": 1, "n": 1}))
    text = comment(capsys, base, head)
    assert "New: `n`\n" in text
    assert "Removed: `old`\n" in text
    assert list(table(text)) == ["a"]
    text = rounds(capsys, [base, base], [head, base])
    assert "Not in every round: `n`\n" in text
    assert "New" not in text


def test_times_of_zero_have_no_change(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    zero, one = write("zero", quiet({"a": 0.0})), write("one", quiet({"a": 1.0}))
    for base, head in ((zero, one), (one, zero), (zero, zero)):
        text = comment(capsys, base, head)
        assert verdicts(text) == (0, 0)
        assert table(text)["a"][-1] == "-"
    assert table(comment(capsys, one, zero))["a"] == ["0 ns", "0 ns", "-", "1 KOps/s", "-"]


# ---- form


@pytest.mark.parametrize(
    ("time", "shown", "rate"),
    [
        (2.5, "2.5 s", "0.4 Ops/s"),
        (0.0785237, "78.52 ms", "12.74 Ops/s"),
        (4.49887e-5, "44.99 us", "22.23 KOps/s"),
        (2.5e-7, "250 ns", "4 MOps/s"),
    ],
)
def test_units(time: float, shown: str, rate: str) -> None:
    assert (compare.seconds(time), compare.operations(time)) == (shown, rate)


@pytest.mark.parametrize(
    "name",
    [
        "a|b",
        "a`b",
        "``",
        "<b>@you</b>",
        "[x](http://y) #1",
        "$\\alpha$",
        "a\n| b |\n# c",
        "-->",
    ],
)
def test_names_are_no_markdown(
    name: str, capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    base, head = write("b", quiet({name: 1, name + "1": 1})), write("h", quiet({name: 1}))
    text = comment(capsys, base, head)
    plain = comment(capsys, write("b", quiet({"x": 1, "y": 1})), write("h", quiet({"x": 1})))
    assert len(text.splitlines()) == len(plain.splitlines())
    (row,) = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 7
    # one code span, whose fence is longer than any run of backticks inside
    fence, inside = re.match(r"\| (`+) ?(.*?) ?\1 \| 1 ms", row).groups()
    assert fence not in inside
    assert inside.replace("\\|", "|") == " ".join(name.split())


def test_names_are_short_and_can_be_encoded() -> None:
    assert compare.code("\ud800") == "`?`"
    assert compare.code("x" * 1000) == f"`{'x' * 120}...`"


def test_a_long_table_is_cut_where_least_changed(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    names = [f"test_loss[clip-hybrid-256-forward+backward-number{i}]" for i in range(1500)]
    base = write("base", quiet(dict.fromkeys(names, 1.0)))
    head = write("head", quiet({name: 1 + i / 1e4 for i, name in enumerate(names)}))
    text = comment(capsys, base, head)
    assert 0.9 * 65_536 < len(text.encode()) <= 65_000
    rows = list(table(text))
    assert rows == names[: -len(rows) - 1 : -1]
    cut = len(names) - len(rows)
    assert f"Cut to fit into a comment: {cut} of 1500 benchmarks, which changed least" in text
    assert "</details>" in text
    # lists of names are cut as well
    text = comment(capsys, base, write("other", quiet({f"n{i}": 1.0 for i in range(1500)})))
    assert "and 1480 more" in text


def test_another_machine_is_a_warning(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    data = quiet({"a": 1.0})
    same = comment(capsys, write("base", data), write("head", data))
    assert "[!WARNING]" not in same
    data["machine_info"].update(node="elsewhere", python_version="3.10.0")
    text = comment(capsys, write("base", quiet({"a": 1.0})), write("head", data))
    (warning,) = [line for line in text.splitlines() if line.startswith("> The runs differ")]
    assert [part in warning for part in ("node: ", "`elsewhere`", "`3.10.0`")] == [True] * 3
    assert "torch" not in warning


def test_a_gpu_has_a_comment_of_its_own(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    data = quiet({"a": 1.0})
    data["machine_info"]["device"] = "NVIDIA H100"
    text = comment(capsys, write("base", data), write("head", data))
    assert text.startswith("<!-- tdheads benchmarks: GPU -->\n")
    assert "Result of GPU Benchmark Tests" in text


# ---- errors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no whole JSON file"),
        (HEAD[0].read_text()[:5000], "no whole JSON file"),
        ("[]", "not written by pytest-benchmark"),
        ('{"benchmarks": 3}', "not written by pytest-benchmark"),
        ('{"benchmarks": [{"name": "a"}]}', "not written by pytest-benchmark (KeyError: 'stats')"),
        ('{"benchmarks": []}', "no benchmarks in it; did the run fail?"),
        (json.dumps(scaled(read(HEAD[0]), float("nan"), OURS)), "took [nan"),
        (json.dumps(scaled(read(HEAD[0]), -1, OURS)), "took [-"),
        (json.dumps(scaled(read(HEAD[0]), 1e300, OURS)), "took ["),
        ("[" * 100_000, "no whole JSON file"),
        (b"\xff\xfe", "no whole JSON file"),
    ],
)
def test_damaged_files_are_one_line(
    content: str | bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "head.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert compare.main([str(BASE[0]), str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"compare.py: {path}: ")
    assert message in err


def test_one_name_twice(
    capsys: pytest.CaptureFixture[str], write: Callable[[str, Json], Path]
) -> None:
    data = quiet({"a": 1})
    data["benchmarks"] *= 2
    assert compare.main([str(BASE[0]), str(write("head", data))]) == 2
    assert "two benchmarks have one name" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["base.json"],
        ["a.json", "b.json", "c.json"],
        ["--base", "a.json", "b.json", "--head", "c.json"],
        ["a.json", "b.json", "--head", "c.json"],
        ["missing.json", "missing.json"],
    ],
)
def test_wrong_arguments_are_one_line(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(args) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_bare_python_is_enough() -> None:
    """No site-packages (-S), no path of the user (-I)."""
    script = DATA.parents[1] / "benchmarks" / "compare.py"
    command = [sys.executable, "-I", "-S", str(script), str(BASE[0]), str(HEAD[0])]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<!-- tdheads benchmarks: CPU -->\n")
