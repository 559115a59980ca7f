"""Agent groups: one loss each, reward and done of the root, agents that are dead."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import GAE

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    GroupLosses,
    KLPENPPOLoss,
    NormalHead,
    PPOLoss,
    SPOLoss,
    TanhNormalHead,
    diagnose,
    make_actor,
    make_group_losses,
)
from tests.versions import needs_scale, needs_value_norm

B, T = 4, 5
AGENTS = {"walkers": 3, "flyers": 2}
TERMS = ("loss_objective", "loss_entropy", "loss_critic")


def networks() -> tuple[dict[str, Any], dict[str, Any]]:
    """Walkers pick one of 5 legal moves and a force, flyers a speed inside bounds."""
    heads = {
        "walkers": CompositeHead(
            CategoricalHead(("walkers", "move"), 5, mask=True),
            NormalHead(("walkers", "force"), (2,)),
        ),
        "flyers": TanhNormalHead(("flyers", "action"), 0.0, 3.0, (2,)),
    }
    actors, critics = {}, {}
    for group, head in heads.items():
        obs, hidden = [(group, "observation")], [(group, "hidden")]
        body = TensorDictModule(nn.Linear(4, 64), obs, hidden)
        actors[group] = make_actor(body, head, in_key=(group, "hidden"), gain=1.0)
        critics[group] = TensorDictModule(nn.Linear(4, 1), obs, [(group, "state_value")])
    return actors, critics


def observed() -> TensorDict:
    td = TensorDict({}, [B, T])
    for group, agents in AGENTS.items():
        td[group] = TensorDict({"observation": torch.randn(B, T, agents, 4)}, [B, T, agents])
    td["walkers", "move_mask"] = torch.rand(B, T, AGENTS["walkers"], 5) < 0.6
    td["walkers", "move_mask"][..., 0] = True
    return td


def rollout(actors: dict[str, Any], *, team_reward: bool = False) -> TensorDict:
    td = observed()
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        for actor in actors.values():
            actor(td)
    td["next"] = observed()
    done = torch.zeros(B, T, 1, dtype=torch.bool)
    done[:, -1] = True
    done[1, 2] = True
    td["next", "done"], td["next", "terminated"] = done, done.clone()
    if team_reward:
        td["next", "reward"] = torch.randn(B, T, 1)
    else:
        for group, agents in AGENTS.items():
            td["next", group, "reward"] = torch.randn(B, T, agents, 1)
    return td


def step(losses: Any, td: TensorDict, optimizers: list[torch.optim.Optimizer]) -> None:
    out = losses(td)
    sum(out[term] for term in TERMS if term in out.keys()).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def grads(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss, KLPENPPOLoss, SPOLoss])
@pytest.mark.parametrize("team_reward", [False, True])
def test_every_loss_runs_for_every_group_and_declares_its_keys(
    kind: Any, team_reward: bool
) -> None:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics, kind)
    td = losses.estimate(rollout(actors, team_reward=team_reward))
    assert td["walkers", "advantage"].shape == torch.Size([B, T, 3, 1])
    out = losses(td)
    assert set(out.keys(True, True)) == set(losses.out_keys)
    for term in TERMS:
        torch.testing.assert_close(out[term], out["walkers", term] + out["flyers", term])
    for group in AGENTS:
        assert out[group, "max_ratio"] == 1
    assert set(losses.in_keys) >= {("walkers", "move_mask"), ("flyers", "action_log_prob")}


def test_advantages_are_gae_with_done_and_reward_given_to_every_agent() -> None:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics)
    losses.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.8)
    td = rollout(actors, team_reward=True)
    by_hand = td.clone()
    for name in ("reward", "done", "terminated"):
        signal = by_hand["next", name].unsqueeze(-2).expand(B, T, 2, 1)
        by_hand["next", "flyers", name] = signal
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=critics["flyers"])
    names = ("reward", "done", "terminated", "advantage", "value_target")
    gae.set_keys(value=("flyers", "state_value"), **{n: ("flyers", n) for n in names})
    with torch.no_grad():
        gae(by_hand)
    losses.estimate(td)
    for name in ("advantage", "value_target"):
        torch.testing.assert_close(td["flyers", name], by_hand["flyers", name])
    # what the loss computes by itself is the same
    alone = losses(rollout_of(td))["flyers", "loss_critic"]
    torch.testing.assert_close(alone, losses(td)["flyers", "loss_critic"])
    assert ("next", "flyers", "done") not in td.keys(True, True)


def rollout_of(td: TensorDict) -> TensorDict:
    names = ("advantage", "value_target", "state_value")
    computed = [(g, name) for g in AGENTS for name in names]
    return td.exclude(*computed, *(("next", *key) for key in computed))


def running_norm() -> Any:
    from torchrl.modules import RunningValueNorm

    return RunningValueNorm(shape=1)


@pytest.mark.parametrize(
    ("norm", "make"),
    [
        ("normalize_advantage", lambda: True),
        pytest.param("value_norm", running_norm, marks=needs_value_norm),
        pytest.param("advantage_norm", running_norm, marks=needs_scale),
    ],
)
def test_the_reward_scale_of_one_group_does_not_reach_the_other(norm: str, make: Any) -> None:
    actors, critics = networks()
    td = rollout(actors)
    found = []
    for scale in (1.0, 1000.0):
        losses = make_group_losses(AGENTS, actors, critics, **{norm: make()})
        scaled = td.clone()
        scaled["next", "flyers", "reward"] *= scale
        losses(losses.estimate(scaled))  # statistics that are kept reach the next forward
        losses.zero_grad()
        out = losses(losses.estimate(scaled))
        sum(out[term] for term in TERMS).backward()
        found.append({group: grads(loss) for group, loss in losses.items()})
    for name, grad in found[0]["walkers"].items():
        assert torch.equal(grad, found[1]["walkers"][name])
    assert any(not torch.equal(g, found[1]["flyers"][n]) for n, g in found[0]["flyers"].items())


def test_one_optimizer_and_one_per_group_give_the_same_parameters() -> None:
    actors, _ = networks()
    batches = [rollout(actors) for _ in range(10)]
    results = []
    for split in (False, True):
        torch.manual_seed(0)
        own_actors, own_critics = networks()
        losses = make_group_losses(AGENTS, own_actors, own_critics)
        modules = list(losses.values()) if split else [losses]
        optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in modules]
        for td in batches:
            step(losses, losses.estimate(td.clone()), optimizers)
        results.append(dict(losses.named_parameters()))
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


@pytest.mark.parametrize("in_critic", [False, True])
def test_dead_agents_reach_no_parameter_of_the_policy(in_critic: bool) -> None:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics, alive="mask", alive_in_critic=in_critic)
    td = losses.estimate(rollout(actors))
    for group, agents in AGENTS.items():
        td[group, "mask"] = torch.rand(B, T, agents) < 0.7
    dead = ~td["walkers", "mask"]
    dirty = td.clone()
    keys = ["advantage", "move_logits", "force_loc", "force_scale", "move_log_prob", "force"]
    keys += ["observation", "value_target"] if in_critic else []
    for key in keys:
        dirty["walkers", key][dead] = math.nan
    dirty["walkers", "move_mask"][dead] = False
    found = []
    for batch in (td, dirty):
        losses.zero_grad()
        out = losses(batch)
        sum(out[term] for term in TERMS).backward()
        found.append((out, grads(losses)))
    for key, figure in found[0][0].items(True, True):
        torch.testing.assert_close(found[1][0][key], figure, rtol=0, atol=0)
    for name, grad in found[0][1].items():
        assert torch.equal(grad, found[1][1][name]), name
    # worked out apart: the mean over live agents, and of the critic over all or the live ones
    walkers = td["walkers"]
    value = critics["walkers"](td.clone())["walkers", "state_value"]
    rows = nn.functional.smooth_l1_loss(value, walkers["value_target"], reduction="none")[..., 0]
    expected = rows[walkers["mask"]].mean() if in_critic else rows.mean()
    torch.testing.assert_close(found[0][0]["walkers", "loss_critic"], expected)
    gain = walkers["advantage"][..., 0][walkers["mask"]].mean()
    torch.testing.assert_close(found[0][0]["walkers", "loss_objective"], -gain)


def test_padding_and_death_go_together() -> None:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics, alive="mask")
    td = losses.estimate(rollout(actors))
    for group, agents in AGENTS.items():
        td[group, "mask"] = torch.rand(B, T, agents) < 0.7
    td["collector", "mask"] = torch.rand(B, T, 1) < 0.7
    rows = td["collector", "mask"] & td["flyers", "mask"]
    gain = td["flyers", "advantage"][..., 0][rows].mean()
    torch.testing.assert_close(losses(td)["flyers", "loss_objective"], -gain)


def test_diagnose_gives_a_group_what_is_the_roots() -> None:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics)
    td = rollout(actors, team_reward=True)
    assert diagnose(losses["flyers"], td).ok
    assert ("next", "flyers", "reward") not in td.keys(True, True)
    with pytest.raises(TypeError, match=r"look at each group, losses\[group\]"):
        diagnose(losses, td)  # type: ignore[arg-type]


@needs_value_norm
def test_every_group_has_a_value_norm_of_its_own() -> None:
    torch.manual_seed(0)
    actors, critics = networks()
    norm = running_norm()
    losses = make_group_losses(AGENTS, actors, critics, value_norm=norm)
    td = rollout(actors)
    td["next", "flyers", "reward"] *= 1000
    losses.estimate(td)
    losses(td)
    spread = {group: loss.value_norm.m2.item() for group, loss in losses.items()}
    assert spread["flyers"] > 1e4 * spread["walkers"] > 0
    assert norm.m2 == 0  # the one that was given is a pattern


def test_state_dict_and_access_by_group() -> None:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics)
    other = make_group_losses(AGENTS, *networks())
    other.load_state_dict(losses.state_dict())
    td = losses.estimate(rollout(actors))
    torch.testing.assert_close(other(td)["loss_critic"], losses(td)["loss_critic"])
    assert list(losses) == list(AGENTS)
    assert len(losses) == 2
    assert losses["flyers"] is dict(losses.items())["flyers"]


@pytest.mark.parametrize("names", [("a", "b"), ("keys", "training"), ("team.1", "team.2")])
def test_a_checkpoint_finds_its_group_in_another_order(names: tuple[str, str]) -> None:
    def losses(groups: Any) -> GroupLosses:
        actors = {}
        for group in groups:
            body = TensorDictModule(nn.Linear(4, 64), [(group, "observation")], [(group, "hidden")])
            head = CategoricalHead((group, "action"), 3)
            actors[group] = make_actor(body, head, in_key=(group, "hidden"))
        return make_group_losses(groups, actors)

    saved, loaded = losses(names), losses(names[::-1])
    loaded.load_state_dict(saved.state_dict())
    for group in names:
        for ours, theirs in zip(saved[group].parameters(), loaded[group].parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_with_one_number_per_row_there_is_no_sum_of_groups() -> None:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics, reduction="none")
    out = losses(losses.estimate(rollout(actors)))
    assert out["walkers", "loss_objective"].shape == torch.Size([B, T, 3])
    assert set(out.keys(True, True)) == set(losses.out_keys)


class PerAgent(nn.Module):
    """Features of the root -> one row for each of two agents."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2 * width)

    def forward(self, state: Tensor) -> Tensor:
        return self.linear(state).unflatten(-1, (2, -1))


def test_an_observation_of_the_root_is_enough() -> None:
    torch.manual_seed(0)
    body = TensorDictModule(PerAgent(64), ["state"], [("a", "hidden")])
    actor = make_actor(body, CategoricalHead(("a", "action"), 3), in_key=("a", "hidden"))
    critic = TensorDictModule(PerAgent(1), ["state"], [("a", "state_value")])
    following = {"state": torch.randn(B, T, 4), "reward": torch.randn(B, T, 1)}
    td = TensorDict({"state": torch.randn(B, T, 4), "next": following}, [B, T])
    td["a"] = TensorDict({}, [B, T, 2])
    td["next", "done"] = torch.zeros(B, T, 1, dtype=torch.bool)
    with torch.no_grad():
        actor(td)
    losses = make_group_losses(["a"], {"a": actor}, {"a": critic})
    losses.estimate(td)
    assert td["a", "advantage"].shape == torch.Size([B, T, 2, 1])
    assert losses(td)["a", "max_ratio"] == 1


def mistakes() -> dict[str, tuple[Any, type[Exception], str]]:
    actors, critics = networks()
    losses = make_group_losses(AGENTS, actors, critics)
    td = rollout(actors)

    def changed(**entries: Any) -> Any:
        batch = td.clone()
        for name, value in entries.items():
            batch["next", name] = value
        return batch

    flat = torch.zeros(B, T, dtype=torch.bool)
    return {
        "no loss": (lambda: GroupLosses({}), ValueError, "expected a loss for each group"),
        "no loss of ours": (
            lambda: GroupLosses({"a": nn.Linear(1, 1)}),  # type: ignore[dict-item]
            TypeError,
            "'a': expected a loss of tdheads",
        ),
        "actor missing": (
            lambda: make_group_losses(AGENTS, {"walkers": actors["walkers"]}),
            KeyError,
            r"'flyers': expected one of the actors, got \['walkers'\]",
        ),
        "critic missing": (
            lambda: make_group_losses(AGENTS, actors, {}),
            KeyError,
            "expected one of the critics",
        ),
        "actor of no group": (
            lambda: make_group_losses(["walkers"], actors),
            ValueError,
            r"actors: \['flyers'\] are none of the groups",
        ),
        "group named twice": (
            lambda: make_group_losses(["walkers", "walkers"], actors),
            ValueError,
            "expected each group once",
        ),
        "actors swapped": (
            lambda: make_group_losses(AGENTS, dict(zip(AGENTS, [*actors.values()][::-1]))),  # noqa: B905
            ValueError,
            r"actors\['walkers'\]: .*writes those of \['flyers'\]",
        ),
        "actor at the root": (
            lambda: make_group_losses(
                ["walkers"],
                {
                    "walkers": make_actor(
                        TensorDictModule(nn.Linear(4, 64), ["observation"], ["hidden"]),
                        CategoricalHead("action", 3),
                    )
                },
            ),
            ValueError,
            r"actors\['walkers'\]: .*make_head\(..., group='walkers'\)",
        ),
        "critics swapped": (
            lambda: make_group_losses(
                AGENTS,
                actors,
                dict(zip(AGENTS, [*critics.values()][::-1])),  # noqa: B905
            ),
            ValueError,
            r"critics\['walkers'\]: .*writes those of \['flyers'\]",
        ),
        "one finished estimator": (
            lambda: losses.make_value_estimator(
                GAE(gamma=0.9, lmbda=0.8, value_network=critics["walkers"])
            ),
            TypeError,
            "give each group its own",
        ),
        "a setting of the losses": (
            lambda: setattr(losses, "entropy_coeff", 0.5),
            AttributeError,
            r"entropy_coeff: set it for every group, losses\[group\].entropy_coeff",
        ),
        "no next": (
            lambda: losses.estimate(td.exclude("next")),
            KeyError,
            r"\('next', 'walkers', 'reward'\): not in the tensordict",
        ),
        "unknown group": (lambda: losses["divers"], KeyError, "'divers': expected one of"),
        "no reward": (
            lambda: losses.estimate(td.exclude(("next", "flyers", "reward"))),
            KeyError,
            r"\('next', 'flyers', 'reward'\).*or for all at \('next', 'reward'\)",
        ),
        "done without its last dim": (
            lambda: losses.estimate(changed(done=flat)),
            ValueError,
            r"\('next', 'done'\): expected shape \[4, 5, 1\], got \[4, 5\]",
        ),
        "alive missing": (
            lambda: make_group_losses(AGENTS, actors, critics, alive="mask")(
                losses.estimate(td.clone())
            ),
            KeyError,
            r"\('walkers', 'mask'\).*says which agents act",
        ),
        "several masks of the living": (
            lambda: losses["flyers"].set_keys(alive=["mask", "alive"]),
            ValueError,
            "alive: expected one key, got",
        ),
        "misspelt keyword": (
            lambda: make_group_losses(AGENTS, actors, critics, clip_epsilom=0.1),
            TypeError,
            "did you mean 'clip_epsilon'",
        ),
    }


@pytest.mark.parametrize("name", mistakes())
def test_mistakes(name: str) -> None:
    mistake, kind, message = mistakes()[name]
    with pytest.raises(kind, match=message):
        mistake()
