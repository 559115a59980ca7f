"""What `train.py` trains: networks, loss and optimizer for a task, whatever its agent groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from envs import Task
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.modules import MLP, MultiAgentMLP, ValueOperator

from tdheads import (
    ClipPPOLoss,
    GroupLosses,
    Head,
    KLPENPPOLoss,
    PolicyLoss,
    PPOLoss,
    SPOLoss,
    make_actor,
    make_group_losses,
    make_head,
)

Settings = dict[str, Any]

LOSSES: dict[str, Callable[[Settings], tuple[type[PolicyLoss], Settings]]] = {
    "clip": lambda s: (ClipPPOLoss, {"clip_epsilon": s["clip_epsilon"]}),
    "ppo": lambda s: (PPOLoss, {}),
    "kl-penalty": lambda s: (KLPENPPOLoss, {}),
    "spo": lambda s: (SPOLoss, {"epsilon": s["clip_epsilon"]}),
}
"""Each loss and its own keywords."""


class Network(nn.Module):
    """A task's `encode` in front of a tanh MLP."""

    def __init__(self, encode: Callable[..., Tensor], mlp: nn.Module) -> None:
        super().__init__()
        self.encode, self.mlp = encode, mlp

    def forward(self, *observation: Tensor) -> Tensor:
        return self.mlp(self.encode(*observation))


@dataclass
class Agent:
    """What is trained, and what trains it."""

    actor: nn.Module
    loss: PolicyLoss | GroupLosses
    optimizer: torch.optim.Optimizer

    @property
    def losses(self) -> dict[str | None, PolicyLoss]:
        """The loss of each group, or the one at the root, which has no name."""
        return dict(self.loss.items()) if isinstance(self.loss, GroupLosses) else {None: self.loss}

    def parts(self) -> dict[str, Any]:
        """The parts that a checkpoint holds: the loss has both networks, and beta where it has one.

        The actor comes once more, for those who only want to play.
        """
        return {"actor": self.actor, "loss": self.loss, "optimizer": self.optimizer}


def build(task: Task, env: EnvBase, settings: Settings) -> Agent:
    """Actors and critics, the PPO loss with its advantage estimator, and Adam."""
    networks = {group: make_networks(task, env, settings, group) for group in task.parts}
    kind, own = LOSSES[settings["loss"]](settings)
    options = own | {
        "entropy_coeff": settings["entropy_coeff"],
        "normalize_advantage": True,
        "loss_critic_type": "smooth_l1",
    }
    loss: PolicyLoss | GroupLosses
    if task.groups:
        actors = {group: actor for group, (actor, _) in networks.items()}
        critics = {group: critic for group, (_, critic) in networks.items()}
        loss = make_group_losses(task.groups, actors, critics, kind, alive=task.alive, **options)
        actor: nn.Module = TensorDictSequential(*actors.values())
    else:
        actor, critic = networks[None]
        loss = kind(actor, critic, **options)
    loss.make_value_estimator(gamma=settings["gamma"], lmbda=settings["lmbda"])
    optimizer = torch.optim.Adam(loss.parameters(), lr=settings["lr"], eps=1e-5)
    return Agent(actor, loss, optimizer)


def make_networks(
    task: Task, env: EnvBase, settings: Settings, group: str | None
) -> tuple[nn.Module, nn.Module]:
    """Actor and critic of a group, whose agents share both or have their own."""
    hidden, shared = settings["hidden"], settings["share_params"]
    in_keys = [task.key(key, group) for key in task.observation]
    sample = env.fake_tensordict()
    features = task.encode(*(sample[key] for key in in_keys))
    network = partial(make_network, task, features, agents=group is not None, shared=shared)

    head = make_task_head(task, env, settings, group)
    inner = task.key("hidden", group)
    if shared:
        body = network(hidden, num_cells=[hidden], activate_last_layer=True)
        backbone = TensorDictModule(body, in_keys, [inner])
        actor = make_actor(backbone, head, in_key=inner, num_features=hidden)
    else:  # every agent has its own last layer too, so that there is no projection to share
        body = network(head.num_params, num_cells=[hidden, hidden])
        backbone = TensorDictModule(body, in_keys, [inner])
        actor = ProbabilisticTensorDictSequential(backbone, head.split_params(inner), head)

    value = network(1, central=settings["central_critic"], num_cells=[hidden, hidden])
    critic = ValueOperator(value, in_keys, [task.key("state_value", group)])
    return actor.to(settings["device"]), critic.to(settings["device"])


def make_task_head(task: Task, env: EnvBase, settings: Settings, group: str | None) -> Head:
    """The head for the group's action spec, with the mask unless the run is without."""
    mask: Any = False
    if task.mask and settings["mask"]:
        mask = {task.key(task.action, group): task.key(task.mask, group)}
    return make_head(
        env.full_action_spec, env.observation_spec, group=group, mask=mask, **task.head
    )


def make_network(
    task: Task,
    features: Tensor,
    width: int,
    *,
    agents: bool,
    shared: bool,
    central: bool = False,
    **options: Any,
) -> Network:
    """`[*B, f]` -> `[*B, width]`; with `agents` the last dim of `*B` is theirs."""
    options |= {"activation_class": nn.Tanh}
    size = features.shape[-1]
    if not agents or (shared and not central):
        return Network(task.encode, MLP(size, width, **options))
    options |= {"centralized": central, "share_params": shared}
    return Network(task.encode, MultiAgentMLP(size, width, features.shape[-2], **options))
