"""A masked task for BenchMARL: each agent picks the largest of the numbers that it may pick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarl.environments.common import TaskClass
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

AGENTS, CHOICES, STEPS = 3, 5, 7


class MaskedTeamEnv(EnvBase):
    """Refuses an illegal action, so that a run that ends took none."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(batch_size=[num_envs])
        rows = (num_envs, AGENTS)
        self.observation_spec = self._group(
            observation=Unbounded((*rows, CHOICES)),
            action_mask=Binary(CHOICES, (*rows, CHOICES), dtype=torch.bool),
        )
        self.action_spec = self._group(action=Categorical(CHOICES, rows))
        self.reward_spec = self._group(reward=Unbounded((*rows, 1)))
        self.steps = torch.zeros(num_envs, 1, dtype=torch.long)

    def _group(self, **entries: TensorSpec) -> Composite:
        agents = Composite(entries, shape=(*self.batch_size, AGENTS))
        return Composite(agents=agents, shape=self.batch_size)

    def _observe(self, **more: Any) -> TensorDict:
        numbers = torch.rand(*self.batch_size, AGENTS, CHOICES)
        mask = torch.rand_like(numbers) < 0.5
        mask[..., 0] |= ~mask.any(-1)
        self.mask, self.numbers = mask, numbers
        agents = {"observation": numbers, "action_mask": mask, **more}
        return TensorDict({"agents": TensorDict(agents, numbers.shape[:-1])}, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        self.steps.zero_()  # episodes are of one length, so all end together
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        action = tensordict["agents", "action"].unsqueeze(-1)
        assert self.mask.gather(-1, action).all()
        self.steps += 1
        td = self._observe(reward=self.numbers.gather(-1, action))
        done = self.steps >= STEPS
        return td.update({"done": done, "terminated": done.clone()})

    def _set_seed(self, seed: int | None) -> None:
        pass


class MaskedTeam(TaskClass):
    def get_env_fun(self, num_envs: int, **_: Any) -> Callable[[], EnvBase]:
        return lambda: MaskedTeamEnv(num_envs)

    def supports_continuous_actions(self) -> bool:
        return False

    def supports_discrete_actions(self) -> bool:
        return True

    def has_render(self, env: EnvBase) -> bool:
        return False

    def max_steps(self, env: EnvBase) -> int:
        return STEPS

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        return {"agents": [f"agent_{i}" for i in range(AGENTS)]}

    def observation_spec(self, env: EnvBase) -> Composite:
        spec = env.full_observation_spec_unbatched.clone()
        del spec["agents", "action_mask"]
        return spec

    def action_mask_spec(self, env: EnvBase) -> Composite:
        spec = env.full_observation_spec_unbatched.clone()
        del spec["agents", "observation"]
        return spec

    def action_spec(self, env: EnvBase) -> Composite:
        return env.full_action_spec_unbatched

    def info_spec(self, env: EnvBase) -> None:
        return None

    def state_spec(self, env: EnvBase) -> None:
        return None

    @staticmethod
    def env_name() -> str:
        return "masked"


def best(batch: TensorDictBase) -> Tensor:
    """Return the share of choices that were the best ones."""
    agents = batch["agents"]
    legal = agents["observation"].masked_fill(~agents["action_mask"], -1)
    return (legal.argmax(-1) == agents["action"]).float().mean()
