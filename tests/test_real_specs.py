"""make_head on environments whose specs and masks disagree, played without an illegal action."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torchrl.envs import PendulumEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type

from tdheads import ActionSpecMask, Head, MultiCategoricalHead, make_head

# Environments' packages warn of their own affairs.
pytestmark = pytest.mark.filterwarnings("ignore")

PLAYERS = ("agents", "action")


def needs(package: str, extra: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f'{package} comes with pip install "tdheads[{extra}]"',
    )


def random_policy(head: Head, rows: tuple[int, ...]) -> TensorDictModuleBase:
    """Parameters far from uniform and new in each step: whatever the mask allows is drawn."""
    (leaf,) = head.leaves
    module = TensorDictModule(
        lambda done: 3 * torch.randn(*rows, head.num_params),
        in_keys=["done"],
        out_keys=list(leaf.param_keys.values()),
    )
    return TensorDictSequential(module, head)


@needs("pyspiel", "pettingzoo")
@pytest.mark.parametrize("categorical", [False, True], ids=["one-hot", "categorical"])
@pytest.mark.parametrize("game", ["tic_tac_toe", "leduc_poker"])
def test_openspiel_keeps_its_mask_in_the_action_spec(game: str, categorical: bool) -> None:
    from torchrl.envs import OpenSpielEnv

    base = OpenSpielEnv(game, categorical_actions=categorical)
    with pytest.raises(ValueError, match=r"its action spec has a mask, and none is found for it"):
        make_head(base.full_action_spec, base.observation_spec)
    env = TransformedEnv(base, ActionSpecMask())
    env.set_seed(0)
    torch.manual_seed(0)
    check_env_specs(env)
    head = make_head(env.full_action_spec, env.observation_spec)
    assert head.leaves[0].mask_key == ("agents", "action_mask")
    policy = random_policy(head, (2,))
    td = env.reset()
    games = 0
    for _ in range(150):
        state = base._env  # what the rules themselves say
        legal = [{0}, {0}]  # who does not act takes 0
        legal[state.current_player()] = set(state.legal_actions())
        with set_exploration_type(ExplorationType.RANDOM):
            td = policy(td)
        taken = td[PLAYERS] if categorical else td[PLAYERS].argmax(-1)
        assert all(choice in own for choice, own in zip(taken.tolist(), legal, strict=True))
        td, following = env.step_and_maybe_reset(td)
        games += int(td["next", "done"])
        td = following
    assert games >= 5


@pytest.mark.slow  # compiles the environment
@needs("jumanji", "jumanji")
def test_jumanjis_multi_cvrp_has_fewer_choices_than_its_spec_says() -> None:
    from torchrl.envs import JumanjiEnv

    env = JumanjiEnv("MultiCVRP-v0")
    env.set_seed(0)
    torch.manual_seed(0)
    assert env.action_spec.space.high.tolist() == [21, 21]
    assert env.observation_spec["action_mask"].shape == torch.Size([2, 21])
    head = make_head(env.full_action_spec, env.observation_spec)
    assert isinstance(head, MultiCategoricalHead)
    assert head.nvec == (21, 21)
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        td = env.rollout(60, random_policy(head, ()), break_when_any_done=False)
    assert td.numel() == 60
    assert td["action"].dtype == torch.int16
    assert env.action_spec.is_in(td["action"][0])
    for actions, mask in zip(td["action"].tolist(), td["action_mask"], strict=True):
        assert all(bool(mask[vehicle, node]) for vehicle, node in enumerate(actions))
    assert len(set(td["action"].flatten().tolist())) > 15


def test_a_spec_without_a_mask_needs_no_transform() -> None:
    with pytest.raises(ValueError, match="expected an action spec with a mask, got none in"):
        TransformedEnv(PendulumEnv(), ActionSpecMask()).observation_spec  # noqa: B018
