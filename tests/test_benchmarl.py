"""BenchMARL's IPPO and MAPPO with our heads and loss, next to its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

if importlib.util.find_spec("benchmarl") is None:
    pytest.skip(
        "BenchMARL needs torchrl < 0.12: make test-oldest runs this", allow_module_level=True
    )

from benchmarl import algorithms as theirs
from benchmarl.environments import VmasTask
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models import MlpConfig

import tdheads.benchmarl as ours
from tdheads import CategoricalHead
from tests.masked_team import MaskedTeam, best
from tests.test_readme import PYTHON

pytestmark = pytest.mark.filterwarnings("ignore")  # of BenchMARL's own affairs
G = "agents"
TASKS = {
    "discrete": (VmasTask.BALANCE.get_from_yaml(), False, {}),
    "continuous": (VmasTask.BALANCE.get_from_yaml(), True, {}),
    "unbounded": (VmasTask.BALANCE.get_from_yaml(), True, {"use_tanh_normal": False}),
    "masked": (MaskedTeam("team", {}), False, {}),
}
all_tasks = pytest.mark.parametrize("task", TASKS)
both = pytest.mark.parametrize("name", ["IppoConfig", "MappoConfig"])


class Record(Callback):
    """Keeps what the loss wrote in each iteration, one entry per minibatch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[TensorDict] = []
        self.batches: list[TensorDict] = []

    def on_batch_collected(self, batch: TensorDict) -> None:
        self.batches.append(batch.clone())

    def on_train_end(self, training_td: TensorDict, group: str) -> None:
        self.losses.append(training_td)


def experiment(
    library: Any, name: str, task: str, folder: Path, record: Record | None = None, **options: Any
) -> Experiment:
    given, continuous, own = TASKS[task]
    config = ExperimentConfig.get_from_yaml()
    config.loggers, config.create_json = [], False
    config.evaluation = config.render = False
    config.save_folder, config.prefer_continuous_actions = str(folder), continuous
    config.max_n_iters, config.max_n_frames = 2, None
    config.on_policy_collected_frames_per_batch, config.on_policy_n_envs_per_worker = 70, 10
    config.on_policy_n_minibatch_iters, config.on_policy_minibatch_size = 2, 35
    config.lr = 1e-2
    for key, value in options.items():
        setattr(config, key, value)
    algorithm = getattr(library, name).get_from_yaml()
    for key, value in {"entropy_coef": 0.01, **own}.items():
        setattr(algorithm, key, value)
    model = MlpConfig.get_from_yaml()
    model.num_cells = [16]
    callbacks = [] if record is None else [record]
    return Experiment(given, algorithm, model, 0, config, callbacks=callbacks)


@both
@all_tasks
def test_an_experiment_trains(name: str, task: str, tmp_path: Path) -> None:
    record = Record()
    running = experiment(ours, name, task, tmp_path, record)
    before = [param.clone() for param in running.losses[G].parameters()]
    running.run()
    assert running.n_iters_performed == 2
    for figures in record.losses:
        # nothing has moved before the first minibatch; a matrix product of 35 rows rounds otherwise
        # than one of 10
        for ratio in ("max_ratio", "mean_ratio"):
            assert figures[0][ratio].item() == pytest.approx(1, abs=1e-5)
        assert figures[-1]["max_ratio"] > 1.001
        assert figures["loss_critic"].isfinite().all()
    moved = zip(before, running.losses[G].parameters(), strict=True)
    assert all((old != new).any() for old, new in moved)
    spec = running.action_spec[G, "action"]
    actions = record.batches[-1][G, "action"]
    if task != "unbounded":
        assert all(spec.is_in(action) for action in actions.flatten(0, 1))


@both
@all_tasks
def test_the_loss_is_benchmarls(name: str, task: str, tmp_path: Path) -> None:
    """The same networks on the same batch: BenchMARL's policy collects it."""
    one, other = (experiment(lib, name, task, tmp_path) for lib in (theirs, ours))
    with set_exploration_type(ExplorationType.RANDOM):
        batch = one.env_func().rollout(7, one.policy, break_when_any_done=False)
    results = []
    for run in (one, other):
        td = batch.detach().clone()
        if run is other:
            td[G, "action_log_prob"] = td[G, "log_prob"]
        td = run.algorithm.process_batch(G, td).reshape(-1)
        loss = run.losses[G]
        for param in loss.actor_network_params.parameters():
            generator = torch.Generator().manual_seed(param.numel())
            param.data.add_(0.1 * torch.randn(param.shape, generator=generator))
        results.append((td, loss(td), loss))
    (td, expected, loss), (own_td, found, own_loss) = results
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(own_td[G, key], td[G, key])
    # a squashed normal has no formula for its entropy: both estimate it, from other draws
    terms = ["loss_objective", "loss_critic"] + ["loss_entropy"] * (task != "continuous")
    for term in terms:
        torch.testing.assert_close(found[term], expected[term], rtol=1e-4, atol=1e-6)
    for result in (expected, found):
        sum(result[term] for term in terms).backward()
    for kind in ("actor_network_params", "critic_network_params"):
        params = [list(getattr(module, kind).parameters()) for module in (loss, own_loss)]
        for param, own in zip(*params, strict=True):
            torch.testing.assert_close(own.grad, param.grad, rtol=1e-3, atol=1e-6)


def test_a_masked_task_is_learnt(tmp_path: Path) -> None:
    record = Record()
    sizes = {
        "on_policy_n_envs_per_worker": 70,
        "on_policy_collected_frames_per_batch": 490,
        "on_policy_minibatch_size": 98,
        "on_policy_n_minibatch_iters": 5,
        "gamma": 0.0,  # what is chosen changes nothing later
    }
    experiment(ours, "MappoConfig", "masked", tmp_path, record, max_n_iters=8, **sizes).run()
    first, *_, last = map(best, record.batches)
    assert first < 0.65  # 2.5 of 5 are legal on average
    assert last > first + 0.2


def test_an_experiment_is_restored_from_its_checkpoint(tmp_path: Path) -> None:
    run = experiment(ours, "IppoConfig", "masked", tmp_path, checkpoint_at_end=True)
    run.run()
    (path,) = tmp_path.rglob("*.pt")
    restored = Experiment.reload_from_file(str(path), {"restore_map_location": None})
    assert isinstance(restored.algorithm, ours.Ippo)
    for old, new in zip(run.losses[G].parameters(), restored.losses[G].parameters(), strict=True):
        torch.testing.assert_close(old, new)


def test_a_group_with_a_head_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(self: Any, group: str) -> CategoricalHead:
        assert group == G
        return CategoricalHead((G, "action"), 5, mask=True, on_empty="neutral")

    monkeypatch.setattr(ours.GroupPPO, "build_head", build)
    run = experiment(ours, "IppoConfig", "masked", tmp_path)
    run.run()
    assert run.policy[0][-1].on_empty == "neutral"


def test_the_block_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = experiment(ours, "MappoConfig", "discrete", tmp_path).config
    config.max_n_iters = None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ExperimentConfig, "get_from_yaml", lambda: config)
    assert "= 60_000," in PYTHON[4]
    names: dict[str, Any] = {}
    exec(PYTHON[4].replace("= 60_000,", "= 140,"), names)
    assert (names["config"].max_n_frames, names["config"].loggers) == (140, ["csv"])
    assert list(tmp_path.rglob("*.csv"))
