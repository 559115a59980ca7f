"""The scripts of examples/, run small: every environment, resuming, and answers to mistakes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils._pytree import tree_flatten
from torchrl.envs import check_env_specs

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PACKAGES = {"taxi": "gymnasium", "connect_four": "pettingzoo"}
"""Of environments that need one."""
# Four environments, five steps each; a pass over a batch is three minibatches of 7, 7 and 6 rows.
SMALL = [
    *("--num-envs", "4"),
    *("--frames-per-batch", "20"),
    *("--minibatch-size", "7"),
    *("--epochs", "2"),
    *("--eval-episodes", "3"),
]


def is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


pytestmark = [
    # Environments' packages warn of their own affairs.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        is_missing("tqdm") or is_missing("matplotlib"),
        reason='the scripts need pip install "tdheads[examples]"',
    ),
]


def need(env: str) -> None:
    if is_missing(PACKAGES.get(env, "torchrl")):
        pytest.skip(f'{env} needs pip install "tdheads[{PACKAGES[env]}]"')


def run(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLES / script, *words]
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def envs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("envs")


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("train")


def read(folder: Path, figure: str) -> list[float]:
    lines = (folder / "csv" / "scalars" / f"{figure}.csv").read_text().splitlines()
    return [float(line.split(",")[1]) for line in lines]


# --- The command line ------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["taxi", "tictactoe", "golf", "connect_four"])
def test_command_line(env: str, tmp_path: Path) -> None:
    need(env)
    out = tmp_path / "run"
    result = run("train.py", "--env", env, *SMALL, "--total-frames", 40, "--out", out)
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert last.startswith(f"{env}: mean return ")
    assert "illegal actions 0.00%" in last
    assert last.endswith(f"files in {out}")
    assert read(out, "illegal") == [0, 0]
    assert (out / "curve.png").exists()


@pytest.mark.parametrize("env", ["taxi", "tictactoe"])
def test_eval_only(
    env: str, train: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need(env)
    out = str(tmp_path / "run")
    train.main(["--env", env, *SMALL, "--total-frames", "20", "--out", out])
    trained = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    capsys.readouterr()
    train.main(["--resume", out, "--eval-only", "--eval-episodes", "10"])
    line = capsys.readouterr().out
    assert "illegal actions 0.00%" in line
    assert "(10 deterministic episodes) after 20 frames" in line
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == trained


@pytest.mark.parametrize("loss", ["ppo", "kl-penalty", "spo"])
def test_every_loss_trains(loss: str, train: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--env", "tictactoe", "--loss", loss, *SMALL, "--total-frames", "40"]
    train.main([*words, "--out", str(out)])
    assert read(out, "illegal") == [0, 0]
    assert (out / "csv" / "scalars" / "kl.csv").exists() == (loss == "kl-penalty")


def test_profile_accounts_for_the_time(
    train: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.main(
        ["--env", "golf", *SMALL, "--total-frames", "40", "--profile", "--out", str(tmp_path)]
    )
    lines = capsys.readouterr().out.splitlines()
    shares = {line.split()[0]: float(line.split()[1].rstrip("%")) for line in lines[:-2]}
    phases = ["environment", "acting", "advantage", "loss", "backward", "optimizer", "rest"]
    assert list(shares) == phases
    assert all(share > 0 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    assert re.fullmatch(r"\d+ frames per second, evaluations left out", lines[-2])


def test_gradient_of_one_group_does_not_scale_anothers(train: ModuleType) -> None:
    weights = {name: torch.nn.Parameter(torch.zeros(1)) for name in ("small", "large")}
    scale = {"small": 1.0, "large": 1000.0}

    class Loss(torch.nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.weight = weights[name]

    def loss(_: TensorDict) -> TensorDict:
        total = sum(scale[name] * weight for name, weight in weights.items()).sum()
        terms = {"loss_objective": total, "loss_critic": 0 * total, "loss_entropy": 0 * total}
        return TensorDict({**terms, "small": TensorDict(), "large": TensorDict()})

    agent = SimpleNamespace(
        loss=loss,
        losses={name: Loss(name) for name in weights},
        optimizer=torch.optim.SGD(weights.values(), lr=1.0),
    )
    train.update(agent, TensorDict(), {"max_grad_norm": 0.5})
    torch.testing.assert_close(weights["small"].data, torch.tensor([-0.5]))
    torch.testing.assert_close(weights["large"].data, torch.tensor([-0.5]))


def test_without_the_mask_illegal_actions_are_counted(train: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--env", "tictactoe", *SMALL, "--total-frames", "40", "--no-mask", "--out", str(out)]
    train.main(words)
    assert min(read(out, "illegal")) > 0


def test_tensorboard(train: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason='needs pip install "tdheads[examples]"')
    words = ["--env", "golf", *SMALL, "--total-frames", "20", "--logger", "tensorboard"]
    train.main([*words, "--out", str(tmp_path)])
    assert list((tmp_path / "tensorboard").rglob("events.out.tfevents*"))


# --- Golf ------------------------------------------------------------------------------------


def swing(env: Any, club: int, swing: float, mask: list[bool]) -> TensorDict:
    state = env.reset()
    state["position"] = torch.full((2, 1), 0.8)
    state["club_mask"] = torch.tensor([mask, mask])
    state["action"] = TensorDict(
        {"club": torch.full((2,), club), "swing": torch.full((2, 1), swing)}, [2]
    )
    return env.step(state)["next"]


def test_golf_ball_flies_as_far_as_club_and_swing_say(envs: ModuleType) -> None:
    env = envs.golf.GolfEnv(2)
    env.ERROR = 0.0
    after = swing(env, club=1, swing=-0.5, mask=[True, True, True])
    torch.testing.assert_close(after["position"], torch.full((2, 1), 0.65))  # 0.8 - 0.5 * 0.3
    assert after["reward"].tolist() == [[-1.0], [-1.0]]
    assert not after["done"].any()
    assert swing(env, club=0, swing=-0.795, mask=[True, True, True])["done"].all()


def test_golf_club_that_cannot_be_used_does_not_move_the_ball(envs: ModuleType) -> None:
    after = swing(envs.golf.GolfEnv(2), club=0, swing=-0.8, mask=[False, True, True])
    assert after["position"].tolist() == torch.full((2, 1), 0.8).tolist()


# --- The round, and policies with memory ------------------------------------------------------


def beats(canon: ModuleType, envs: int = 500) -> TensorDict:
    env = canon.CanonEnv(envs)
    env.set_seed(0)
    return env.rollout(2 * canon.CanonEnv.LONGEST, break_when_any_done=False)


@pytest.fixture
def canon(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("canon")


def test_the_round_keeps_its_specs(canon: ModuleType) -> None:
    made = canon.CanonEnv(3)
    made.set_seed(0)
    check_env_specs(made)


def test_every_voice_of_the_round_sings_what_was_heard_before(canon: ModuleType) -> None:
    data = beats(canon)
    heard = data["observation"].argmax(-1) + 1
    targets, done = data["state", "targets"], data["next", "done"].squeeze(-1)
    assert (targets[..., 0] == heard).all()
    for voice in (1, 2):
        # of one beat ago in the voice before it, and silent at the start of a tune
        expected = torch.where(done[:, :-1], 0, targets[:, :-1, voice - 1])
        assert (targets[:, 1:, voice] == expected).all()
    ends = done.int().argmax(1) + 1
    assert set(ends.tolist()) == set(range(8, 17))
    right = (data["action"] == targets) & (targets > 0)
    assert (data["next", "reward"].squeeze(-1) == right.sum(-1)).all()


def test_the_mask_of_the_round_tells_nothing_but_three_equally_likely_notes(
    canon: ModuleType,
) -> None:
    data = beats(canon, 1000)
    mask, targets = data["action_mask"].flatten(0, 1), data["state", "targets"].flatten(0, 1)
    assert mask.gather(-1, targets.unsqueeze(-1)).all()
    sings = targets > 0
    assert (mask.sum(-1) == torch.where(sings, 3, 1)).all()
    assert (mask[..., 0] == ~sings).all()
    # the place of the right note among the three, for voices that cannot hear it
    place = (mask.cumsum(-1).gather(-1, targets.unsqueeze(-1)) - 1).squeeze(-1)
    for voice in (1, 2):
        counts = torch.bincount(place[sings[:, voice], voice], minlength=3).double()
        n = counts.sum()
        # chi-square with 2 degrees of freedom: above 18.4 once in 10,000 seeds
        assert ((counts - n / 3) ** 2 / (n / 3)).sum() < 18.4
        # and it is independent of the note that is heard
        heard = data["observation"].argmax(-1).flatten()[sings[:, voice]]
        table = torch.bincount(heard * 6 + targets[sings[:, voice], voice] - 1, minlength=36)
        expected = n / 36
        # 35 degrees of freedom: above 77.4 once in 20,000 seeds
        assert ((table - expected) ** 2 / expected).sum() < 77.4


def test_recurrent_runs_small(tmp_path: Path) -> None:
    words = ["--cell", "lstm", "none", "--seeds", 0, "--frames", 4096]
    result = run("recurrent.py", *words, "--output", tmp_path / "round.png")
    assert result.returncode == 0, result.stderr
    first, *trained = result.stdout.splitlines()[-3:]
    chance = float(first.split()[-1])
    assert first.startswith("right notes of 33.")
    assert chance == pytest.approx(11, abs=0.5)
    assert [line.split(":")[0] for line in trained] == ["LSTM", "without memory"]
    assert (tmp_path / "round.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_policy_with_memory_passes_the_bound_without(
    canon: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    recurrent = importlib.import_module("recurrent")
    curve, score = recurrent.train("gru", 0, 9 * recurrent.FRAMES)
    assert curve[0][1] < 13  # about what chance gives, 11
    assert score > canon.CanonEnv.MEMORYLESS + 5


# --- Illegal actions -------------------------------------------------------------------------


def test_illegal_actions_by_hand(envs: ModuleType, train: ModuleType) -> None:
    plain = TensorDict(
        {
            "action": torch.tensor([0, 1, 1]),
            "action_mask": torch.tensor([[1, 0], [1, 0], [0, 0]], dtype=torch.int8),
        },
        [3],
    )
    illegal, choice = train.illegal_actions(plain, envs.TASKS["taxi"])
    assert illegal.tolist() == [False, True, False]  # the last row has nothing to choose
    assert choice.tolist() == [True, True, False]


def test_illegal_actions_per_dimension_and_joint(envs: ModuleType, train: ModuleType) -> None:
    mask = torch.tensor([[True, True, False], [True, False, True]])
    pairs = torch.tensor([[0, 0], [1, 0], [0, 2], [1, 1]])
    data = TensorDict({"action": pairs, "action_mask": mask.expand(4, 2, 3)}, [4])
    # Rows as masks of the two dimensions: the second one may not take 1.
    per_dimension, _ = train.illegal_actions(data, envs.TASKS["connector"])
    assert per_dimension.tolist() == [False, False, False, True]
    # As a table of pairs: its zeros are at (0, 2) and (1, 1).
    joint, _ = train.illegal_actions(data, envs.TASKS["binpack"])
    assert joint.tolist() == [False, False, True, True]


# --- Stopping and resuming -------------------------------------------------------------------


def flat(checkpoint: dict[str, Any]) -> list[Any]:
    for row in checkpoint["history"]:
        del row["fps"]
    leaves, structure = tree_flatten(checkpoint)
    return [x.tolist() if isinstance(x, torch.Tensor) else x for x in leaves] + [str(structure)]


@pytest.mark.parametrize(
    ("env", "loss"),
    [("taxi", "clip"), ("tictactoe", "kl-penalty"), ("golf", "clip"), ("golf", "kl-penalty")],
)
def test_resumed_run_is_the_uninterrupted_run(
    env: str, loss: str, train: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(env)
    words = ["--env", env, "--loss", loss, *SMALL, "--total-frames", "80"]
    words += ["--checkpoint-every", "2"]
    words += ["--eval-every", "1", "--out"]
    train.main([*words, str(tmp_path / "straight")])

    log = train.Log.write

    def log_then_stop(self: Any, row: Any) -> None:
        log(self, row)
        if self.run.iteration == 3:  # one iteration after the checkpoint: its row is lost
            raise KeyboardInterrupt

    monkeypatch.setattr(train.Log, "write", log_then_stop)
    with pytest.raises(SystemExit) as stopped:
        train.main([*words, str(tmp_path / "stopped")])
    monkeypatch.setattr(train.Log, "write", log)
    assert stopped.value.code == 130
    assert torch.load(tmp_path / "stopped" / "checkpoint.pt")["iteration"] == 2
    train.main(["--resume", str(tmp_path / "stopped")])

    straight, resumed = (
        torch.load(tmp_path / x / "checkpoint.pt") for x in ("straight", "stopped")
    )
    assert ("beta" in straight["loss"]) == (loss == "kl-penalty")
    assert flat(straight) == flat(resumed)
    for figure in ("loss_objective", "illegal", "eval_return"):
        assert read(tmp_path / "straight", figure) == read(tmp_path / "stopped", figure)


# --- Mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--env go", "argument --env: invalid choice"),
        ("--lr -1", "argument --lr: -1.0 is not a number of at least 0"),
        ("--gamma 1.5", "argument --gamma: 1.5 is not between 0 and 1"),
        ("--epochs 0", "argument --epochs: 0 is not at least 1"),
        ("--epochs two", "argument --epochs: invalid positive value: 'two'"),
        ("--frames-per-batch 100 --num-envs 3", "100 is not a multiple of --num-envs 3"),
        ("--frames-per-batch 128 --minibatch-size 200", "larger than --frames-per-batch 128"),
        ("--env golf --central-critic", "--no-share-params: golf has no groups"),
        ("--device cuda:99", "--device cuda:99 is not available"),
        ("--eval-only", "--eval-only needs --resume DIR"),
        ("--resume a --out b", "--out cannot be given with --resume"),
        ("--resume nowhere", "--resume nowhere: there is no checkpoint.pt in it"),
        ("--no-such-option", "unrecognized arguments: --no-such-option"),
    ],
)
def test_bad_argument_is_answered_in_one_line(
    words: str, answer: str, train: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        train.main(words.split())
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert answer in error
    assert error.count("\n") == 1


def test_folders_and_checkpoints_that_cannot_be_used_are_answered_in_one_line(
    train: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"half a checkpoint")
    for words, answer in (
        (["--out", str(tmp_path / "checkpoint.pt")], "--out"),
        (["--resume", str(tmp_path)], "checkpoint.pt cannot be read"),
    ):
        with pytest.raises(SystemExit) as stopped:
            train.main(words)
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        assert answer in error
        assert error.count("\n") == 1


def test_a_run_is_not_overwritten_or_changed(
    train: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env", "golf", *SMALL, "--total-frames", "20", "--out", str(tmp_path)]
    train.main(words)
    for again, answer in (
        (words, f"{tmp_path} holds a run: --resume {tmp_path} continues it"),
        (["--resume", str(tmp_path), "--lr", "0.5"], "--lr cannot change in a resumed run"),
    ):
        with pytest.raises(SystemExit):
            train.main(again)
        assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "package", "extra"),
    [
        ("taxi", "gymnasium", "gymnasium"),
        ("connect_four", "pettingzoo", "pettingzoo"),
        ("connector", "jumanji", "jumanji"),
        ("chess", "chess", "chess"),
        ("leduc_poker", "pyspiel", "openspiel"),
        ("speaker_listener", "vmas", "vmas"),
        ("golf", "tqdm", "examples"),
        ("golf", "matplotlib", "examples"),
        ("golf", "tensorboard", "examples"),
    ],
)
def test_missing_package_is_answered_in_one_line(
    env: str,
    package: str,
    extra: str,
    train: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what Python does to a failed import
    with pytest.raises(SystemExit) as stopped:
        train.main(["--env", env, *SMALL, "--logger", "tensorboard", "--out", str(tmp_path)])
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert package in error
    assert error.endswith(f'run: pip install "tdheads[{extra}]"\n')
    assert error.count("\n") == 1


# --- The picture of the README ---------------------------------------------------------------


def test_plot_masks_draws_finished_runs(tmp_path: Path) -> None:
    for variant in ("--mask", "--no-mask"):
        for seed in (0, 1):
            folder = tmp_path / f"taxi{variant}-{seed}"
            (folder / "csv" / "scalars").mkdir(parents=True)
            (folder / "checkpoint.pt").touch()
            # The seeds have a return in different batches.
            (folder / "csv" / "scalars" / "return.csv").write_text(f"{10 + seed},-5\n30,-2\n")
            (folder / "csv" / "scalars" / "illegal.csv").write_text("10,0.5\n20,0.3\n30,0.2\n")
    picture = tmp_path / "docs" / "taxi.png"
    result = run("plot_masks.py", "--runs", tmp_path, "--output", picture, "--seeds", 0, 1)
    assert result.returncode == 0, result.stderr
    assert picture.stat().st_size > 10_000
