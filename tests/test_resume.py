"""A run that was stopped, saved and resumed is, bit for bit, the run that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.data import (
    Binary,
    Composite,
    LazyTensorStorage,
    SliceSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import GRUModule, LSTMModule, PopArtValueNorm, RunningValueNorm
from torchrl.modules.utils import get_env_transforms_from_module
from torchrl.objectives import ValueEstimators

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    KLPENPPOLoss,
    MultiCategoricalHead,
    NormalHead,
    make_actor,
    make_group_losses,
)
from tests.batches import TERMS, collect
from tests.cases import HEADS, critic

ENVS, STEPS, FEATURES, WIDTH, LENGTH = 5, 11, 3, 7, 4
AGENTS = {"walkers": 3, "flyers": 2}
HYBRID = HEADS[-1]


def heads() -> dict[str, Any]:
    """Walkers have a masked move and a force, flyers two masked choices."""
    return {
        "walkers": CompositeHead(
            CategoricalHead(("walkers", "move"), 5, mask=("walkers", "mask")),
            NormalHead(("walkers", "force"), (2,)),
        ),
        "flyers": MultiCategoricalHead(("flyers", "pair"), [2, 3], mask=("flyers", "mask")),
    }


class GroupsEnv(EnvBase):
    """Random observations, masks and rewards; an episode ends with odds of 1/4."""

    def __init__(self) -> None:
        super().__init__(batch_size=[ENVS])
        groups, actions = {}, {}
        for group, n in AGENTS.items():
            entries = {
                "observation": Unbounded(shape=(ENVS, n, FEATURES)),
                "mask": Binary(shape=(ENVS, n, 5), dtype=torch.bool),
            }
            groups[group] = Composite(entries, shape=(ENVS, n))
            rows = {"walkers": {"move": [], "force": [2]}, "flyers": {"pair": [2]}}[group]
            kinds = {name: torch.float32 if name == "force" else torch.int64 for name in rows}
            actions[group] = Composite(
                {x: Unbounded(shape=(ENVS, n, *s), dtype=kinds[x]) for x, s in rows.items()},
                shape=(ENVS, n),
            )
        self.observation_spec = Composite(groups, shape=(ENVS,))
        self.action_spec = Composite(actions, shape=(ENVS,))
        self.reward_spec = Unbounded(shape=(ENVS, 1))
        self.rng = torch.Generator()

    def _set_seed(self, seed: int | None) -> None:
        self.rng.manual_seed(seed or 0)

    def _observe(self) -> TensorDictBase:
        td = TensorDict({}, [ENVS])
        for group, n in AGENTS.items():
            observation = torch.randn(ENVS, n, FEATURES, generator=self.rng)
            mask = torch.rand(ENVS, n, 5, generator=self.rng) < 0.6
            mask[..., [1, 2]] = True
            td[group] = TensorDict({"observation": observation, "mask": mask}, [ENVS, n])
        return td

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        reward = 100 * torch.randn(ENVS, 1, generator=self.rng)
        done = torch.rand(ENVS, 1, generator=self.rng) < 1 / 4
        return self._observe().update({"reward": reward, "done": done})


class Features(nn.Module):
    """What the group remembers, beside what each of its agents sees."""

    def forward(self, memory: Tensor, observation: Tensor) -> Tensor:
        agents = observation.shape[-2]
        shared = memory.unsqueeze(-2).expand(*memory.shape[:-1], agents, WIDTH)
        return torch.cat([shared, observation], -1)


def body(group: str, cell: type) -> TensorDictSequential:
    """One memory per group; its state lies at the root, where the time is the last batch dim."""
    states = [f"{group}_h", f"{group}_c"] if cell is LSTMModule else [f"{group}_h"]
    seen, memory, observation = f"{group}_seen", f"{group}_memory", (group, "observation")
    return TensorDictSequential(
        TensorDictModule(lambda x: x.flatten(-2), [observation], [seen]),
        cell(
            AGENTS[group] * FEATURES,
            WIDTH,
            in_keys=[seen, *states],
            out_keys=[memory, *(("next", state) for state in states)],
        ),
        TensorDictModule(Features(), [memory, observation], [(group, "hidden")]),
    )


class Run:
    """All that a run has, built anew; ``save`` and ``load`` are its checkpoint."""

    def __init__(self, *, minibatches: bool) -> None:
        torch.manual_seed(0)
        self.minibatches = minibatches
        actors, critics = {}, {}
        for (group, head), cell in zip(heads().items(), (LSTMModule, GRUModule), strict=True):
            shared, width = body(group, cell), WIDTH + FEATURES
            actors[group] = make_actor(
                shared, head, in_key=(group, "hidden"), num_features=width, gain=1.0
            )
            value = TensorDictModule(
                nn.Linear(width, 1), [(group, "hidden")], [(group, "state_value")]
            )
            critics[group] = TensorDictSequential(shared, value)
        self.losses = make_group_losses(
            AGENTS,
            actors,
            critics,
            KLPENPPOLoss,
            dtarg=1e-3,
            value_norm=RunningValueNorm(shape=1),
            advantage_norm=PopArtValueNorm(shape=1),
        )
        self.actor = nn.ModuleDict(actors)
        self.optimizer = torch.optim.Adam(self.losses.parameters(), lr=0.01)
        self.env = TransformedEnv(GroupsEnv(), get_env_transforms_from_module(self.actor))
        self.env.set_seed(0)
        self.now = self.env.reset()
        self.figures: list[dict[str, float]] = []

    def save(self, path: Path) -> None:
        names = list(self.env.full_observation_spec.keys(True, True))
        state = {
            "losses": self.losses.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "now": self.now.select(*names, "done", "terminated").to_dict(),
            "random": [torch.get_rng_state(), self.env.base_env.rng.get_state()],
        }
        torch.save(state, path)

    def load(self, path: Path) -> None:
        state = torch.load(path)
        self.losses.load_state_dict(state["losses"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.now.update(state["now"])
        torch.set_rng_state(state["random"][0])
        self.env.base_env.rng.set_state(state["random"][1])

    @torch.no_grad()
    def collect(self) -> TensorDictBase:
        """Go on in the middle of the episodes; ``[ENVS, STEPS]``."""
        steps = []
        with set_exploration_type(ExplorationType.RANDOM):
            for _ in range(STEPS):
                for actor in self.actor.values():
                    actor(self.now)
                step, self.now = self.env.step_and_maybe_reset(self.now)
                steps.append(step)
        return torch.stack(steps, -1)

    def parts(self, batch: TensorDictBase) -> list[TensorDictBase]:
        if not self.minibatches:
            return [batch, batch]
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(batch.numel()),
            sampler=SliceSampler(
                slice_len=LENGTH, traj_key="episode", strict_length=False, pad_output=True
            ),
            batch_size=7 * LENGTH,
        )
        begins = batch["is_init"].squeeze(-1).clone()
        begins[:, 0] = True
        batch["episode"] = begins.flatten().cumsum(0).view(batch.shape)
        buffer.extend(batch.reshape(-1))
        return [buffer.sample().reshape(7, LENGTH) for _ in range(3)]

    def iterate(self, times: int) -> None:
        for _ in range(times):
            for part in self.parts(self.losses.estimate(self.collect())):
                out = self.losses(part)
                sum(out[term] for term in TERMS).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.figures.append({str(k): v.item() for k, v in out.items(True, True)})


@pytest.mark.parametrize("minibatches", [False, True])
def test_a_resumed_run_is_the_run_that_never_stopped(minibatches: bool, tmp_path: Path) -> None:
    straight = Run(minibatches=minibatches)
    begun = {name: value.clone() for name, value in straight.losses.state_dict().items()}
    straight.iterate(6)
    stopped = Run(minibatches=minibatches)
    stopped.iterate(3)
    assert not stopped.now["is_init"].all()  # in the middle of episodes
    assert (stopped.now["walkers_c"] != 0).any()
    stopped.save(tmp_path / "checkpoint.pt")
    resumed = Run(minibatches=minibatches)
    torch.manual_seed(99)
    resumed.load(tmp_path / "checkpoint.pt")
    resumed.iterate(3)

    assert resumed.figures == straight.figures[len(straight.figures) // 2 :]
    state = straight.losses.state_dict()
    assert list(state) == list(resumed.losses.state_dict())
    for name, value in resumed.losses.state_dict().items():
        assert torch.equal(value, state[name]), name
    for a, b in zip(
        straight.optimizer.state.values(), resumed.optimizer.state.values(), strict=True
    ):
        assert all(torch.equal(a[name], b[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    for key in straight.now.keys(True, True):
        assert torch.equal(straight.now[key], resumed.now[key]), key
    # the run moved all that a checkpoint has to hold
    for group in AGENTS:
        prefix = f"losses.group_{group}."
        assert state[prefix + "beta"] != 1
        for name in ("value_norm.mean", "value_norm.count", "advantage_norm.running_mean"):
            assert not torch.equal(state[prefix + name], begun[prefix + name]), name
    moved = [n for n in begun if "params" in n and not torch.equal(begun[n], state[n])]
    assert any("walkers" in n or ".lstm." in n for n in moved)
    assert any(".gru." in n for n in moved)


# ---- what a loss turned on, off or built while it trained


def trained(**options: Any) -> ClipPPOLoss:
    return ClipPPOLoss(HYBRID.actor(), critic(), **options)


def stored(loss: nn.Module, path: Path) -> Any:
    torch.save(loss.state_dict(), path)
    return torch.load(path)


@pytest.mark.parametrize("functional", [True, False])
def test_an_estimator_that_was_built_on_the_way_is_loaded(functional: bool, tmp_path: Path) -> None:
    loss = trained(functional=functional)
    td = collect(HYBRID, loss.actor_network, [7, 2]).exclude("advantage", "value_target")
    td["next"] = td.clone()
    td["next", "reward"] = torch.randn(7, 2, 1)
    td["next", "done"] = torch.zeros(7, 2, 1, dtype=torch.bool)
    loss(td)  # computes the advantage with the default estimator
    loss.value_estimator.gamma.fill_(0.5)
    fresh = trained(functional=functional)
    fresh.load_state_dict(stored(loss, tmp_path / "loss.pt"))
    for key, figure in loss(td).items(True, True):
        torch.testing.assert_close(fresh(td)[key], figure, rtol=0, atol=0)
    assert fresh.value_estimator.gamma == 0.5
    # and a loss that was saved before it was built leaves it as it is
    loss.load_state_dict(stored(trained(functional=functional), tmp_path / "loss.pt"))
    assert loss.value_estimator.gamma == 0.5


def test_another_estimator_is_an_error(tmp_path: Path) -> None:
    loss, other = trained(), trained()
    loss.make_value_estimator(ValueEstimators.TD0, gamma=0.9)
    other.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.9)
    with pytest.raises(RuntimeError, match=r"_value_estimator\.lmbda"):
        other.load_state_dict(stored(loss, tmp_path / "loss.pt"))


@pytest.mark.parametrize("name", ["clip_value", "max_importance_ratio", "critic_coeff"])
def test_a_coefficient_that_was_turned_on_or_off_on_the_way_is_loaded(
    name: str, tmp_path: Path
) -> None:
    off = None if name != "critic_coeff" else 0.0
    on, never = trained(**{name: 0.7}), trained(**{name: off})
    turned_on, turned_off = trained(**{name: off}), trained(**{name: 0.7})
    turned_on.load_state_dict(stored(on, tmp_path / "loss.pt"))
    assert torch.equal(getattr(turned_on, name), torch.tensor(0.7))
    assert name in turned_on.state_dict()
    turned_off.load_state_dict(stored(never, tmp_path / "loss.pt"))
    assert getattr(turned_off, name) is None
    turned_off.load_state_dict(turned_on.state_dict())
    assert torch.equal(getattr(turned_off, name), torch.tensor(0.7))
