"""The environments of examples/envs/: specs, legal actions, first ratios, and who does not act."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import check_env_specs

EXAMPLES = Path(__file__).parent.parent / "examples"
MODULES = {
    "taxi": "gymnasium",
    "tictactoe": "torchrl",
    "golf": "torchrl",
    "chess": "chess",
    "connect_four": "pettingzoo",
    "zombies": "pettingzoo",
    "leduc_poker": "pyspiel",
    "snake": "jumanji",
    "connector": "jumanji",
    "binpack": "jumanji",
    "foraging": "jumanji",
    "speaker_listener": "vmas",
    "speaker_listener_continuous": "vmas",
}
EXTRAS = {"pyspiel": "openspiel"}
SIZES = {"chess": (4, 200), "connect_four": (4, 400), "zombies": (4, 200), "leduc_poker": (4, 800)}
"""Environments and steps of those that make a few hundred steps a second."""

# Environments' packages warn of their own affairs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    pytest.importorskip("tqdm", reason='the scripts need pip install "tdheads[examples]"')
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = ("agent", "envs", "environments", "options")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def made(scripts: Any, name: str, num_envs: int) -> tuple[Any, Any, Any]:
    """The task, its environment, and an untrained agent."""
    module = MODULES[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f'{name} needs pip install "tdheads[{EXTRAS.get(module, module)}]"')
    task = scripts.envs.TASKS[name]
    env = task.make(num_envs)
    torch.manual_seed(0)
    env.set_seed(0)
    return task, env, scripts.agent.build(task, env, scripts.options.DEFAULTS | task.settings)


def gradient(loss: Any, batch: TensorDictBase) -> list[Tensor | None]:
    """Of the policy's terms alone."""
    out = loss(batch)
    total = out["loss_objective"] + out["loss_entropy"]
    return torch.autograd.grad(total, list(loss.parameters()), allow_unused=True)


def same(first: list[Tensor | None], second: list[Tensor | None]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(x is y if x is None else torch.equal(x, y) for x, y in pairs)


def test_the_module_of_every_environment_is_known(scripts: Any) -> None:
    assert list(MODULES) == list(scripts.envs.TASKS)


@pytest.mark.parametrize(
    "name",
    # Jumanji compiles its games.
    [pytest.param(n, marks=pytest.mark.slow if m == "jumanji" else ()) for n, m in MODULES.items()],
)
def test_environment(name: str, scripts: Any) -> None:
    num_envs, steps = SIZES.get(name, (100, 10_000))
    task, env, agent = made(scripts, name, num_envs)
    assert scripts.environments.count_illegal(agent, env, task, steps) == 0
    batch = scripts.environments.first_batch(agent, env, num_envs * 10)
    assert scripts.environments.ratio_error(agent, batch, task) == 0
    losses = agent.loss(batch)
    sum(losses[t] for t in ("loss_objective", "loss_entropy", "loss_critic")).backward()
    for parameter in agent.loss.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    env.rand_action = scripts.environments.random_policy(task, env)
    check_env_specs(env)


def test_the_table_has_a_row_of_what_is_installed(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "vmas", None)  # what Python does to a failed import
    words = ["golf", "speaker_listener", "--total-frames", "4096", "--runs", str(tmp_path)]
    scripts.environments.main(words)
    answer = capsys.readouterr()
    (row,) = answer.out.splitlines()[2:]
    *left, random, trained = row.strip("| ").split(" | ")
    assert left == ["golf", "this repository", "4,096", "0", "0"]
    # A player without skill needs nearly all of 20 strokes.
    assert -20 <= float(random) < -15
    assert -20 <= float(trained) < -10
    assert "speaker_listener: vmas cannot be imported" in answer.err
    with pytest.raises(SystemExit):
        scripts.environments.main(["go"])
    assert "unknown environments ['go']" in capsys.readouterr().err


def test_illegal_actions_are_seen(scripts: Any) -> None:
    """The count of zero above can be another one: without its mask the policy breaks rules."""
    task, env, _ = made(scripts, "tictactoe", 50)
    settings = scripts.options.DEFAULTS | task.settings | {"mask": False}
    agent = scripts.agent.build(task, env, settings)
    assert scripts.environments.count_illegal(agent, env, task, 500) > 50


def test_the_random_policy_is_uniform_over_what_is_legal(scripts: Any) -> None:
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    uniform = scripts.environments.uniform
    drawn = uniform(mask.expand(6000, 3, 4))
    counts = [torch.bincount(column, minlength=4).tolist() for column in drawn.T]
    assert counts[1:] == [[0, 0, 6000, 0], [6000, 0, 0, 0]]
    assert counts[0][1] == 0
    assert all(1850 < counts[0][i] < 2150 for i in (0, 2, 3))  # 4 standard deviations of 36.5
    pairs = uniform(mask.expand(6000, 3, 4), joint_from=1)
    assert set(map(tuple, pairs.tolist())) == {(0, 0), (0, 2), (0, 3), (1, 2)}


def test_a_player_who_waits_takes_0_and_counts_nothing(scripts: Any) -> None:
    _task, env, agent = made(scripts, "connect_four", 4)
    batch = scripts.environments.first_batch(agent, env, 80)
    learner = batch["learner"]
    waits = ~learner["action_mask"].any(-1)
    assert waits.sum() >= 30
    assert not learner["mask"][waits].any()
    assert not learner["action"][waits].any()
    assert not learner["action_log_prob"][waits].any()
    loss = agent.loss["learner"]
    before = gradient(loss, batch)
    assert any(x is not None and x.abs().sum() > 0 for x in before)
    learner["advantage"][waits] = float("nan")
    assert same(before, gradient(loss, batch))
    learner["advantage"][~waits] += torch.randn(int((~waits).sum()), 1)
    assert not same(before, gradient(loss, batch))


def test_what_dead_agents_did_counts_nothing(scripts: Any) -> None:
    task, env, agent = made(scripts, "zombies", 4)
    batch = scripts.environments.first_batch(agent, env, 640)
    dead = {group: ~batch[group, "mask"] for group in task.groups}
    assert all(rows.any() for rows in dead.values())
    before = {group: gradient(loss, batch) for group, loss in agent.losses.items()}
    for group, rows in dead.items():
        batch[group, "action"][rows] = 5 - batch[group, "action"][rows]
        batch[group, "advantage"][rows] = float("nan")
        batch[group, "action_log_prob"][rows] = float("nan")
    for group, loss in agent.losses.items():
        assert same(before[group], gradient(loss, batch))


def test_chess_counts_material_and_answers_for_black(scripts: Any) -> None:
    task, env, _ = made(scripts, "chess", 1)
    module = importlib.import_module("envs.chess_game")
    start = env.reset()
    assert module.material(start["board"]).item() == 0
    assert start["board"][0, :8].tolist() == [4, 2, 3, 5, 6, 3, 2, 4]  # White's first rank
    policy = scripts.environments.random_policy(task, env)
    games = env.rollout(40, policy, break_when_any_done=False)
    balance = games["next", "reward"].reshape(2, 20).sum(-1)
    last = games["next", "board"].reshape(2, 20, 64)[:, -1]
    assert balance.tolist() == module.material(last).tolist()
    assert not games["turn"].eq(0).any()  # it is White's move in every row
