"""The comment of the benchmarks, against a GitHub of our own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_github import REPOSITORY, GitHub, serve_github

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / ".github" / "scripts" / "comment.py"
spec = importlib.util.spec_from_file_location("comment", SCRIPT)
assert spec is not None
assert spec.loader is not None
comment = importlib.util.module_from_spec(spec)
spec.loader.exec_module(comment)

SHA = "3caa87c0d2e1f4b5a697887766554433221100ff"
OTHER_SHA = "d009835" + SHA[7:]
RUN = "https://github.example/someone/tdheads/actions/runs/7"


@pytest.fixture
def github() -> Iterator[GitHub]:
    with serve_github() as server:
        yield server


Publish = Callable[..., list[float]]


@pytest.fixture
def publish(github: GitHub, tmp_path: Path) -> Publish:
    """Run the script in this process; return how long it would have slept."""

    def run(text: str = "a table", head: str = REPOSITORY) -> list[float]:
        slept: list[float] = []
        file = tmp_path / "comment.md"
        file.write_text(text)
        comment.main(str(file), environment(github, head), slept.append)
        return slept

    return run


def environment(github: GitHub, head: str = REPOSITORY) -> dict[str, str]:
    return {
        "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_TOKEN": "a-token",
        "HEAD_SHA": SHA,
        "HEAD_REPOSITORY": head,
        "RUN_URL": RUN,
    }


def test_created_then_updated_in_place(github: GitHub, publish: Publish) -> None:
    github.open_pull(4, SHA)
    github.add_comment(4, "LGTM", "reviewer")
    publish("first")
    publish("second")
    _, body = github.bodies(4)
    marker, source, _, text = body.splitlines()
    assert marker == comment.MARKER
    assert SHA in source
    assert f"]({RUN})" in source
    assert text == "second"
    assert github.tokens == {"Bearer a-token"}


def test_as_a_command(github: GitHub, tmp_path: Path) -> None:
    github.open_pull(4, SHA)
    (tmp_path / "comment.md").write_text("a table")
    words = [sys.executable, str(SCRIPT), str(tmp_path / "comment.md")]
    done = subprocess.run(
        words, env=os.environ | environment(github), capture_output=True, text=True, check=True
    )
    assert done.stdout == "#4: comment created\n"
    assert len(github.comments[4]) == 1


def test_the_pull_request_is_found_on_a_later_page(github: GitHub, publish: Publish) -> None:
    for number in range(1000, 1200):
        github.open_pull(number, OTHER_SHA)
    github.open_pull(4, SHA)
    publish()
    assert len(github.comments[4]) == 1
    assert sum("/pulls?" in request for request in github.requests) == 3


def test_the_comment_is_found_on_a_later_page(github: GitHub, publish: Publish) -> None:
    github.open_pull(4, SHA)
    for _ in range(100):
        github.add_comment(4, "chat", "reviewer")
    publish("first")
    publish("second")
    assert len(github.comments[4]) == 101
    assert "second" in github.bodies(4)[-1]


def test_each_pull_request_of_a_stack_has_its_own(github: GitHub, publish: Publish) -> None:
    # ghstack opens them from gh/USER/N/head to gh/USER/N/base of the same repository
    github.open_pull(5, OTHER_SHA)
    github.open_pull(7, SHA)
    publish()
    assert github.bodies(5) == []
    assert len(github.comments[7]) == 1


def test_a_fork_is_told_from_a_branch_with_its_commit(github: GitHub, publish: Publish) -> None:
    github.open_pull(4, SHA, "someone-else/tdheads")
    github.open_pull(6, SHA)
    publish(head="someone-else/tdheads")
    assert len(github.comments[4]) == 1
    assert github.bodies(6) == []


def test_several_pull_requests_are_refused(github: GitHub, publish: Publish) -> None:
    github.open_pull(4, SHA)
    github.open_pull(6, SHA)
    with pytest.raises(SystemExit, match=r"several pull requests, \[4, 6\]"):
        publish()
    assert github.comments == {4: [], 6: []}


@pytest.mark.parametrize(("sha", "repository"), [(OTHER_SHA, REPOSITORY), (SHA, None)])
def test_a_head_that_moved_on_is_left_alone(
    github: GitHub,
    publish: Publish,
    capsys: pytest.CaptureFixture[str],
    sha: str,
    repository: str | None,
) -> None:
    github.open_pull(4, sha, repository)
    publish()
    assert github.bodies(4) == []
    assert "no open pull request" in capsys.readouterr().out


@pytest.mark.parametrize("login", ["an-author", "another[bot]", None])
def test_a_marker_of_someone_else_is_not_ours(github: GitHub, publish: Publish, login: str) -> None:
    github.open_pull(4, SHA)
    github.add_comment(4, f"{comment.MARKER}\nfake", login)
    publish()
    fake, real = github.bodies(4)
    assert fake.endswith("fake")
    assert "a table" in real


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_failures_are_tried_again(github: GitHub, publish: Publish, status: int) -> None:
    github.open_pull(4, SHA)
    github.failures = [(status, False), (200, True), (status, False)]
    assert publish() == [1.0, 2.0]
    assert len(github.comments[4]) == 1


def test_a_comment_that_was_created_without_an_answer_is_not_doubled(
    github: GitHub, publish: Publish
) -> None:
    github.open_pull(4, SHA)
    github.failures = [(200, True), (200, True), (502, True)]
    publish()
    assert len(github.comments[4]) == 1
    assert [request.split()[0] for request in github.requests].count("POST") == 1


def test_it_gives_up(github: GitHub, publish: Publish) -> None:
    github.failures = [(503, False)] * 5
    with pytest.raises(SystemExit, match="5 attempts"):
        publish()


def test_a_refusal_is_final(github: GitHub, publish: Publish) -> None:
    github.failures = [(403, False)]
    with pytest.raises(SystemExit, match=r"403.*so sorry"):
        publish()
    assert len(github.requests) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("thanks @someone", "thanks @\u200bsomeone"),
        ("&commat;someone", "&amp;commat;someone"),
        ("[free](https://evil.example)", "[free]\u200b(https:/\u200b/evil.example)"),
        ("![](//evil.example/x.png)", "![]\u200b(/\u200b/evil.example/x.png)"),
        ("[a]: evil.example", "[a]\u200b: evil.example"),
        ("WWW.evil.example", "W\u200bWW.evil.example"),
        ("closes #12, GH-3, a/b#4", "closes #\u200b12, G\u200bH-3, a/b#\u200b4"),
        ("<img src=x>", "&lt;img src=x>"),
        ("<details open onclick=x>", "&lt;details open onclick=x>"),
        ("a<!-- hidden -->b", "ab"),
        ("<!<!-- -->-- never closed", "&lt;!-- never closed"),
        ("a\x00\x1b[31m\u202eb", "a[31mb"),
    ],
)
def test_defused(text: str, shown: str) -> None:
    assert comment.defuse(text) == shown


def test_a_table_passes_unchanged() -> None:
    table = "\n".join(
        [
            r"$\color{#D29922}\textsf{\Large⚠\kern{0.2cm}\normalsize Warning}$ Result",
            r"Improved: $\large\color{#35bf28}5$. Worsened: $\large\color{#d91a1a}4$.",
            "<details><summary>Expand to view detailed results</summary>",
            "",
            "| Name | Max | Mean | Ops | Ops on base | Change |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            r"| `test_loss[clip-256]` | 96.6μs | 31.5μs | 31.7 KOps/s | 31.6 KOps/s |"
            r" $\textbf{\color{#219110}+9.61\%}$ |",
            "</details>",
        ]
    )
    assert comment.defuse(table) == table


def test_what_compare_writes_passes_unchanged(tmp_path: Path) -> None:
    def write(name: str, times: dict[str, float]) -> str:
        benchmarks = [
            {"name": key, "stats": dict.fromkeys(("median", "q1", "q3", "mean", "max"), time)}
            for key, time in times.items()
        ]
        (tmp_path / name).write_text(json.dumps({"benchmarks": benchmarks}))
        return str(tmp_path / name)

    base = write("base.json", {"test_loss[clip-64]": 1e-4, "test_loss[spo]": 1e-4, "test_a|b": 1.0})
    head = write("head.json", {"test_loss[clip-64]": 3e-4, "test_loss[spo]": 1e-4, "test_new": 1.0})
    command = [sys.executable, str(ROOT / "benchmarks" / "compare.py"), base, head]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    marker, text = done.stdout.split("\n", 1)
    assert marker == comment.MARKER
    assert "Worsened: $\\large\\color{#d91a1a}1$" in text
    assert comment.defuse(text) == text.strip()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "comment.md").symlink_to("/proc/self/environ")
    with pytest.raises(OSError, match="symbolic link"):
        comment.read_text(str(tmp_path / "comment.md"))


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "comment.md")
    with pytest.raises(SystemExit, match="regular file"):
        comment.read_text(str(tmp_path / "comment.md"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * (4 * 65_536 + 1), "longer than a comment"),
        (b"x" * 65_536, "of 65536 at most"),
    ],
    ids=["binary", "endless", "long"],
)
def test_what_no_comment_can_hold_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "comment.md"
    file.write_bytes(content)
    with pytest.raises(SystemExit, match=why):
        comment.comment_body(comment.read_text(str(file)), SHA, RUN)
