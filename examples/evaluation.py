"""Returns, illegal actions and the evaluation of a policy, whatever a task's agent groups."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from envs import Task
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, ExplorationType, set_exploration_type

Row = dict[str, float]


def per_environment(data: TensorDictBase, task: Task, name: str) -> Tensor:
    """The mean over a group's agents of an entry, and of that over the groups; `[*B]`."""
    entries = [data[task.key(name, group)] for group in task.parts]
    means = [entry.reshape(*data.shape, -1).mean(-1) for entry in entries]
    return torch.stack(means).mean(0)


def illegal_actions(data: TensorDictBase, task: Task) -> tuple[Tensor, Tensor]:
    """Which rows hold an illegal action, and which had something to choose; both `[*B]`.

    Judged by the mask in the data, whether or not the policy was shown it.
    """
    found = [illegal_in_group(data, task, group) for group in task.parts]
    illegal, choice = (torch.stack(parts).any(0) for parts in zip(*found, strict=True))
    return illegal, choice


def illegal_in_group(data: TensorDictBase, task: Task, group: str | None) -> tuple[Tensor, Tensor]:
    action = data[task.key(task.action, group)].long()
    mask = data[task.key(task.mask, group)].bool()
    if task.joint:  # a pair of choices is one choice out of the product
        sizes = mask.shape[data.ndim :]
        mask = mask.flatten(data.ndim)
        strides = [torch.Size(sizes[i + 1 :]).numel() for i in range(len(sizes))]
        action = (action * action.new_tensor(strides)).sum(-1)
    legal = mask.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    choice = mask.any(-1)
    rows = (*data.shape, -1)
    return (~legal & choice).reshape(rows).any(-1), choice.reshape(rows).any(-1)


@torch.no_grad()
def evaluate(
    policy: Callable[[TensorDictBase], TensorDictBase],
    env: EnvBase,
    task: Task,
    episodes: int,
    device: str = "cpu",
) -> Row:
    """Play `episodes` episodes with a policy, deterministic unless the task says otherwise.

    Every environment plays one episode per round: to count the first `episodes` that end would
    favour short ones. The seed is the same each time, and training's random state is untouched.
    """
    rounds = math.ceil(episodes / env.batch_size[0])
    scores, illegal, choices = [], 0, 0
    how = ExplorationType.RANDOM if task.drawn else ExplorationType.DETERMINISTIC
    with torch.random.fork_rng(), set_exploration_type(how):
        torch.manual_seed(1)
        env.set_seed(1)
        for _ in range(rounds):
            data = env.reset()
            score = torch.zeros(env.batch_size)
            playing = torch.ones(env.batch_size, dtype=torch.bool)
            while playing.any():
                data = policy(data.to(device)).to(env.device)
                if task.mask:
                    wrong, chose = illegal_actions(data, task)
                    illegal += int((wrong & playing).sum())
                    choices += int((chose & playing).sum())
                step, data = env.step_and_maybe_reset(data)
                score += per_environment(step["next"], task, "reward") * playing
                playing &= ~step["next", "done"].view_as(playing)
            scores.append(score)
    returns = torch.cat(scores)[:episodes]
    row = {"eval_return": returns.mean().item()}
    if task.mask:
        row["eval_illegal"] = illegal / choices
    if task.board_game:
        row["eval_wins"] = (returns > 0).float().mean().item()
        row["eval_losses"] = (returns < 0).float().mean().item()
    return row
