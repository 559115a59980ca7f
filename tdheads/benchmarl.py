"""BenchMARL's IPPO and MAPPO with a head and a loss of ours; needs ``pip install benchmarl``.

Everything but the policy's last layers and the loss is BenchMARL's own: models, critics, batches,
configuration, training loop. Give :class:`IppoConfig` or :class:`MappoConfig` to its ``Experiment``
in the place of BenchMARL's class of that name; they read the same YAML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarl import algorithms
from tensordict import TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential
from torchrl.data import Composite, Unbounded
from torchrl.objectives import ValueEstimators

from tdheads.heads import make_head
from tdheads.heads.base import Head
from tdheads.losses import ClipPPOLoss

KEYS = ("reward", "done", "terminated", "advantage", "value_target")


class GroupPPO:
    """The policy and the loss of an agent group, for BenchMARL's PPO algorithms."""

    def build_head(self: Any, group: str) -> Head:
        """Return the head of a group; override it for options or a head of your own."""
        spec = self.action_spec[group, "action"]
        if spec.domain == "continuous" and not self.use_tanh_normal:
            spec = Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)
        agents = len(self.group_map[group])
        return make_head(
            Composite({group: Composite({"action": spec}, shape=(agents,))}),
            self.action_mask_spec,
            group=group,
            scale_mapping=self.scale_mapping,
        )

    def _get_policy_for_loss(
        self: Any, group: str, model_config: Any, continuous: bool
    ) -> ProbabilisticTensorDictSequential:
        head = self.build_head(group)
        agents = len(self.group_map[group])
        raw = Composite({"logits": Unbounded((agents, head.num_params))}, shape=(agents,))
        model = model_config.get_model(
            input_spec=Composite({group: self.observation_spec[group].clone().to(self.device)}),
            output_spec=Composite({group: raw}),
            agent_group=group,
            n_agents=agents,
            input_has_agent_dim=True,
            centralised=False,
            share_params=self.experiment_config.share_policy_params,
            device=self.device,
            action_spec=self.action_spec,
        )
        split = head.split_params((group, "logits"))
        return ProbabilisticTensorDictSequential(model, split, head).to(self.device)

    def _get_loss(
        self: Any, group: str, policy_for_loss: Any, continuous: bool
    ) -> tuple[ClipPPOLoss, bool]:
        loss = ClipPPOLoss(
            policy_for_loss,
            self.get_critic(group),
            clip_epsilon=self.clip_epsilon,
            entropy_coeff=self.entropy_coef,
            critic_coeff=self.critic_coef,
            loss_critic_type=self.loss_critic_type,
        )
        loss.set_keys(value=(group, "state_value"), **{name: (group, name) for name in KEYS})
        loss.make_value_estimator(
            ValueEstimators.GAE, gamma=self.experiment_config.gamma, lmbda=self.lmbda
        )
        loss.register_forward_hook(_loggable)
        return loss, False

    def _get_parameters(self: Any, group: str, loss: ClipPPOLoss) -> dict[str, Any]:
        # theirs takes the buffers along, of which a model has none and a head has
        return {
            "loss_objective": list(loss.actor_network_params.parameters()),
            "loss_critic": list(loss.critic_network_params.parameters()),
        }


def _loggable(loss: ClipPPOLoss, args: Any, out: TensorDictBase) -> TensorDictBase:
    """Return the figures as BenchMARL's loggers take them: not nested, and no integers."""
    return out.flatten_keys(".").float()


class Ippo(GroupPPO, algorithms.Ippo):
    """Independent PPO: every agent has a critic of what it observes."""


class Mappo(GroupPPO, algorithms.Mappo):
    """Multi-agent PPO: the critic sees what all agents of the group observe, or the state."""


@dataclass
class IppoConfig(algorithms.IppoConfig):
    """BenchMARL's configuration of IPPO, for :class:`Ippo`."""

    @staticmethod
    def associated_class() -> type[Ippo]:
        """Return the algorithm."""
        return Ippo


@dataclass
class MappoConfig(algorithms.MappoConfig):
    """BenchMARL's configuration of MAPPO, for :class:`Mappo`."""

    @staticmethod
    def associated_class() -> type[Mappo]:
        """Return the algorithm."""
        return Mappo
