"""What .github/workflows may do, and a dry run of the shell in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from tests.fake_github import REPOSITORY, serve_github

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[str, Any]] = {
    file.stem: YAML(typ="safe", pure=True).load(file) for file in FILES
}
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"]]
VERSION = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
assert VERSION is not None
CI_RUN = (ROOT / ".ci" / "run").read_text()
PARTS = re.findall(r"^make ([\w-]+)", CI_RUN, re.MULTILINE)
MAKE = shutil.which("make")

# Everything that the checks call; `make -n` says whether the target exists.
FAKE_MAKE = f"""#!/usr/bin/env bash
echo "$*" >> "$CALLS"
{MAKE} -n "$@" > /dev/null || exit
case $1 in
    "$FAIL") exit 1 ;;
    demo) echo "taxi: mean return 7.92, illegal actions 0.00%" ;;
    bench-compare) mkdir -p runs/benchmarks && touch runs/benchmarks/{{comment.md,base1.json}} ;;
    dist) mkdir dist && touch dist/tdheads-{VERSION[1]}{{.tar.gz,-py3-none-any.whl}} ;;
esac
"""


def steps(name: str, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = WORKFLOWS[name]["jobs"][job]["steps"]
    return found


def shell(command: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run as a runner does when a step names no shell."""
    return subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=env, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", WORKFLOWS)
def test_rights_are_given_job_by_job(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {}
    assert "pull_request_target" not in workflow["on"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        assert "permissions" in job


def test_who_may_write() -> None:
    rights = {
        (name, job, scope)
        for name, job in JOBS
        for scope, level in WORKFLOWS[name]["jobs"][job]["permissions"].items()
        if level != "read"
    }
    assert rights == {
        ("comment", "comment", "pull-requests"),
        ("release", "publish", "id-token"),
    }


@pytest.mark.parametrize("name", ["ci", "benchmarks"])
def test_stacks_are_checked(name: str) -> None:
    # a stack's pull requests have gh/USER/N/base for a base, so none may be named
    assert not {"branches", "branches-ignore"} & set(WORKFLOWS[name]["on"]["pull_request"] or {})


def test_an_action_is_one_commit_everywhere() -> None:
    used = [
        line.split("uses:")[1].strip()
        for file in FILES
        for line in file.read_text().splitlines()
        if "uses:" in line
    ]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use) for use in used), used
    assert len({use.split("@")[0] for use in used}) == len(set(used))


def test_the_comment_follows_the_benchmarks() -> None:
    trigger = WORKFLOWS["comment"]["on"]["workflow_run"]
    assert trigger["workflows"] == [WORKFLOWS["benchmarks"]["name"]]
    checkout, download, run = steps("comment", "comment")
    assert "ref" not in checkout["with"]  # that is the default branch
    uploads = {
        step["with"]["name"]: step["with"]["path"]
        for step in steps("benchmarks", "cpu")
        if "upload-artifact" in step.get("uses", "")
    }
    text = uploads[download["with"]["name"]]
    assert run["run"].endswith(f'/{Path(text).name}"')


SCRIPTS = {
    **{
        f"{name}-{job}-{i}": step["run"]
        for name, job in JOBS
        for i, step in enumerate(steps(name, job))
        if "run" in step
    },
    ".ci/run": CI_RUN,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_shellcheck(script: str) -> None:
    command = [Path(sys.executable).with_name("shellcheck"), "--shell=bash", "--norc", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Runner(NamedTuple):
    """A checkout as on a runner, with a `make` that only says what it would do."""

    folder: Path
    env: dict[str, str]
    #: what stands for an expression of GitHub's
    values: dict[str, str]

    def run(self, name: str, job: str) -> list[str]:
        """Run the steps of a job; return the calls of make."""
        for step in steps(name, job):
            if "run" not in step:
                continue
            assert "${{" not in step["run"]  # it would be pasted into the script
            own = {key: self.fill(value) for key, value in step.get("env", {}).items()}
            done = shell(step["run"], self.folder, {**self.env, **own})
            assert done.returncode == 0, (step["run"], done.stdout, done.stderr)
        return self.calls()

    def fill(self, value: str) -> str:
        return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: self.values[match[1]], value)

    def calls(self) -> list[str]:
        calls = Path(self.env["CALLS"])
        return calls.read_text().splitlines() if calls.exists() else []

    def git(self, *words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    folder, tools, temp = (tmp_path / name for name in ("checkout", "tools", "temp"))
    for path in (folder, tools, temp):
        path.mkdir()
    for name in (".ci", ".github"):
        shutil.copytree(ROOT / name, folder / name)
    for file in [ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("constraints*.txt")]:
        shutil.copy(file, folder)
    (tools / "make").write_text(FAKE_MAKE)
    (tools / "make").chmod(0o755)
    env = {
        "CALLS": str(tmp_path / "calls"),
        "FAIL": "",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GITHUB_REPOSITORY": REPOSITORY,
        "HOME": str(tmp_path),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(temp),
    }
    runner = Runner(folder, env, {"github.token": "a-token"})
    runner.git("init", "--quiet", "--initial-branch=main")
    for message in ("base", "head"):
        runner.git("commit", "--quiet", "--allow-empty", "--message", message)
    env["GITHUB_SHA"] = runner.git("rev-parse", "HEAD")
    runner.git("update-ref", "refs/remotes/origin/main", "HEAD")
    return runner


def test_ci(runner: Runner) -> None:
    assert {"lint", "types", "workflows", "test-all", "demo"} < set(PARTS)
    calls = [call.split()[0] for call in runner.run("ci", "check")]
    assert calls[0] == PARTS[0] == "install-all"
    assert sorted(calls) == sorted(PARTS)  # the demo runs beside the others


@pytest.mark.parametrize("part", PARTS)
def test_ci_fails_with_each_of_its_parts(runner: Runner, part: str) -> None:
    done = shell(".ci/run", runner.folder, {**runner.env, "FAIL": part})
    assert done.returncode == 1, done.stdout
    # without an install there is nothing to check; else one run shows all that is wrong
    assert len(runner.calls()) == (1 if part == "install-all" else len(PARTS))


def test_other_versions(runner: Runner) -> None:
    assert runner.run("ci", "test") == ["test-all"]
    assert runner.run("ci", "pins") == ["test-all", "workflows"]
    assert runner.run("ci", "latest") == ["test-all", "workflows", "test-all"]
    assert (runner.folder / "constraints.txt").read_text().strip() == ""


def test_benchmarks(runner: Runner) -> None:
    # main has moved on since the pull request branched off
    fork = runner.git("rev-parse", "HEAD")
    runner.git("commit", "--quiet", "--allow-empty", "--message", "of someone else")
    runner.values["github.event.pull_request.base.sha"] = runner.git("rev-parse", "HEAD")
    runner.git("checkout", "--quiet", "-b", "topic", fork)
    runner.git("commit", "--quiet", "--allow-empty", "--message", "of the pull request")
    assert runner.run("benchmarks", "cpu") == [f"bench-compare BASE={fork}"]
    for step in steps("benchmarks", "cpu"):
        if "upload-artifact" in step.get("uses", ""):
            assert list(runner.folder.glob(step["with"]["path"]))


def test_the_commands_of_the_documents_exist(runner: Runner) -> None:
    text = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))
    commands = re.findall(r"^(?=make )[^#\n]+", text, re.MULTILINE)
    commands += re.findall(r"`(make [^`]+)`", text)
    assert len(commands) >= 8
    for command in commands:
        done = shell(command, runner.folder, runner.env)
        assert done.returncode == 0, (command, done.stderr)


def test_release(runner: Runner) -> None:
    runner.env["GITHUB_REF_NAME"] = f"v{VERSION[1]}"
    assert runner.run("release", "build") == ["dist"]


def test_release_of_another_version(runner: Runner) -> None:
    runner.env["GITHUB_REF_NAME"] = "v7.0.0"
    with pytest.raises(AssertionError, match="No such file"):
        runner.run("release", "build")


def test_release_of_a_commit_that_is_not_on_main(runner: Runner) -> None:
    runner.git("update-ref", "refs/remotes/origin/main", "HEAD~")
    with pytest.raises(AssertionError, match="is-ancestor"):
        runner.run("release", "build")
    assert runner.calls() == []


def test_comment(runner: Runner) -> None:
    artifact = Path(runner.env["RUNNER_TEMP"]) / "benchmark-comment"
    artifact.mkdir()
    (artifact / "comment.md").write_text("a table")
    event = "github.event.workflow_run"
    runner.values.update(
        {
            f"{event}.head_sha": runner.env["GITHUB_SHA"],
            f"{event}.head_repository.full_name": REPOSITORY,
            f"{event}.html_url": "https://github.example/run/7",
        }
    )
    with serve_github() as github:
        github.open_pull(5, runner.env["GITHUB_SHA"])
        runner.env["GITHUB_API_URL"] = github.url
        runner.run("comment", "comment")
        assert ["a table" in body for body in github.bodies(5)] == [True]
