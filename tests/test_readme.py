"""Every block of the README runs and does what is said of it."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import ClipPPOLoss, make_group_losses
from tests import test_groups
from tests.test_examples import SMALL, is_missing

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
BASH = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in
        block.splitlines()]  # fmt: skip


def run(number: int, **names: Any) -> dict[str, Any]:
    exec(compile(PYTHON[number], f"README.md block {number}", "exec"), names)
    return names


def test_the_policy_of_the_first_block_learns(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(0)
    mean = float(names["mean"])
    assert mean > 0.75  # a random player gets about 0.55
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == f"mean result of the last games (1 win, 0 loss): {mean:.2f}"
    # "without one illegal move"
    batch = names["batch"]
    assert batch["mask"].gather(-1, batch["action"].unsqueeze(-1)).all()


def test_the_head_of_the_second_block_acts_as_its_comments_say() -> None:
    head = run(1)["head"]
    assert head.dist_sample_keys == ["kind", ("arm", "force"), "target", "where"]
    logits = ["kind_logits", ("arm", "force_loc"), ("arm", "force_scale"), "target_logits"]
    assert set(head.in_keys) == {*logits, "kind_mask", "target_mask", "hidden"}
    rows = 400
    td = TensorDict({"hidden": torch.randn(rows, 64)}, [rows])
    td["kind_mask"] = torch.tensor([False, True, True, True]).expand(rows, 4)
    td["target_mask"] = torch.zeros(rows, 4, 7, dtype=torch.bool)
    td["target_mask"][:, 3, [2, 5]] = True
    with set_exploration_type(ExplorationType.RANDOM):
        td = head(head.projection(64)(td))
    kind = td["kind"]
    assert set(kind.tolist()) == {1, 2, 3}
    assert set(td["target"][kind == 3].tolist()) == {2, 5}
    assert (td["target"][kind != 3] == 0).all()
    assert (td["target_log_prob"][kind != 3] == 0).all()
    force = td["arm", "force"]
    assert (force[kind == 3] == 0).all()
    assert ((force[kind != 3] > 0) & (force[kind != 3] < 10)).all()
    assert td["where"].shape == torch.Size([rows, 3])


def test_the_diagnosis_of_the_third_block_is_the_one_that_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = run(2)["report"]
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert capsys.readouterr().out == shown
    assert not report.ok
    assert report["legal"]


def test_the_groups_of_the_fourth_block_run_with_networks_of_ones_own() -> None:
    assert len(PYTHON) == 5  # the last is run by test_benchmarl.py
    actors, critics = test_groups.networks()
    batch = test_groups.rollout(actors, team_reward=True)
    for group, agents in test_groups.AGENTS.items():
        batch[group, "mask"] = torch.rand(*batch.shape, agents) < 0.8
    env = SimpleNamespace(group_map=test_groups.AGENTS)
    given = {"make_group_losses": make_group_losses, "ClipPPOLoss": ClipPPOLoss}
    out = run(3, env=env, actors=actors, critics=critics, batch=batch, **given)["out"]
    assert {"walkers", "flyers", "loss_objective", "loss_entropy", "loss_critic"} == set(out.keys())


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
def test_the_commands_that_train_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand, but for a budget of a few frames; ``.ci/run`` trains ``make demo`` whole."""
    commands = [shlex.split(line, comments=True) for line in BASH]
    commands = [words for words in commands if words[1:2] == ["examples/train.py"]]
    assert len(commands) >= 4
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    train = importlib.import_module("train")
    for words in commands:
        if "--help" in words:
            with pytest.raises(SystemExit, match=r"^0$"):
                train.main(words[2:])
            continue
        small = [] if "--resume" in words else [*SMALL, "--total-frames", "40"]
        train.main([*words[2:], *small])
        assert "illegal actions 0.00%" in capsys.readouterr().out.splitlines()[-1]
