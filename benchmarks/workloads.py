"""The same actor, critic and batch for tdheads, for TorchRL and for plain PyTorch."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    set_composite_lp_aggregate,
)
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import IndependentNormal, MaskedCategorical
from torchrl.objectives import ClipPPOLoss as TorchRLClipPPOLoss

from benchmarks.reference import HybridActor, choice_loss, loop_over_dimensions, positive
from tdheads import CategoricalHead, ClipPPOLoss, CompositeHead, NormalHead, make_actor
from tdheads.distributions import MaskedMultiCategorical
from tdheads.distributions.layout import Layout

OBS, WIDTH = 32, 64
KIND, TARGET, FORCE = 8, 32, 2
SIZES = [KIND, TARGET, FORCE, FORCE]
NVEC = [3, 12, 5, 2, 8, 4, 10, 6]
MANY = 29_275  # the moves of TorchRL's chess
Runs = dict[str, Callable[[], Any]]


def mlp(out: int | None = None) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(OBS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, *([] if out is None else [nn.Linear(WIDTH, out)]))


def legal(batch: int, n: int) -> Tensor:
    """Random masks, half of the choices legal and the first one always."""
    mask = torch.rand(batch, n) < 0.5
    mask[:, 0] = True
    return mask


class Hybrid:
    """Two masked choices and a continuous leaf, as in `reference.HybridActor`, three times."""

    def __init__(self, batch: int, *, validate: bool = True, functional: bool = True) -> None:
        torch.manual_seed(0)
        body, critic = mlp(), mlp(1)
        head = CompositeHead(
            CategoricalHead("kind", KIND, mask=True, validate=validate),
            CategoricalHead("target", TARGET, mask=True, validate=validate),
            NormalHead("force", (FORCE,), validate=validate),
        )
        self.actor = make_actor(
            TensorDictModule(body, ["observation"], ["hidden"]), head, num_features=WIDTH
        )
        self.critic = TensorDictModule(critic, ["observation"], ["state_value"])
        linear = self.actor[1].module[0]
        # each has parameters of its own, so that no gradient is added to another's
        self.plain_actor = HybridActor(copy.deepcopy(body), copy.deepcopy(linear), SIZES)
        self.plain_critic = copy.deepcopy(critic)
        inputs = TensorDict({"observation": torch.randn(batch, OBS)}, [batch])
        inputs["kind_mask"], inputs["target_mask"] = legal(batch, KIND), legal(batch, TARGET)
        self.inputs, self.plain_inputs = inputs, dict(inputs.items())
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            td = self.actor(inputs.clone())
        td["advantage"], td["value_target"] = torch.randn(batch, 1), torch.randn(batch, 1)
        self.td = td
        self.plain = dict(td.items())
        self._move(body, linear, critic)
        self.torchrl_actor = _torchrl_actor(copy.deepcopy(body), copy.deepcopy(linear))
        torchrl_critic = TensorDictModule(copy.deepcopy(critic), ["observation"], ["state_value"])
        with set_composite_lp_aggregate(False):
            self.torchrl_loss = TorchRLClipPPOLoss(self.torchrl_actor, torchrl_critic)
            self.torchrl_loss.set_keys(
                action=["kind", "target", "force"],
                sample_log_prob=["kind_log_prob", "target_log_prob", "force_log_prob"],
            )
        self.loss = ClipPPOLoss(self.actor, self.critic, functional=functional)

    def _move(self, body: nn.Module, linear: nn.Module, critic: nn.Module) -> None:
        """Change the weights, as an update would, in all copies alike."""
        theirs = (self.plain_actor.body, self.plain_actor.linear, self.plain_critic)
        for ours, plain in zip((body, linear, critic), theirs, strict=True):
            for param in ours.parameters():
                param.data += 0.02 * torch.randn_like(param)
            plain.load_state_dict(ours.state_dict())


class _Params(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        kind, target, loc, raw = self.linear(hidden).split(SIZES, -1)
        return kind, target, loc, positive(raw)


def _torchrl_actor(body: nn.Module, linear: nn.Linear) -> ProbabilisticTensorDictSequential:
    def masks(kind: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return kind, target

    keys: list[Any] = [
        ("params", "kind", "logits"),
        ("params", "target", "logits"),
        ("params", "force", "loc"),
        ("params", "force", "scale"),
    ]
    mask_keys: list[Any] = [("params", "kind", "mask"), ("params", "target", "mask")]
    with set_composite_lp_aggregate(False):
        return ProbabilisticTensorDictSequential(
            TensorDictModule(body, ["observation"], ["hidden"]),
            TensorDictModule(_Params(linear), ["hidden"], keys),
            TensorDictModule(masks, ["kind_mask", "target_mask"], mask_keys),
            ProbabilisticTensorDictModule(
                ["params"],
                ["kind", "target", "force"],
                distribution_class=CompositeDistribution,
                distribution_kwargs={
                    "distribution_map": {
                        "kind": MaskedCategorical,
                        "target": MaskedCategorical,
                        "force": IndependentNormal,
                    }
                },
                return_log_prob=True,
            ),
        )


class Dimensions:
    """Log-prob and entropy of eight masked choices at once, forward and backward."""

    def __init__(self, batch: int, *, validate: bool = True) -> None:
        torch.manual_seed(0)
        self.logits = torch.randn(batch, sum(NVEC), requires_grad=True)
        self.mask = torch.cat([legal(batch, n) for n in NVEC], -1)
        self.weights = torch.randn(2, batch)
        self.layout, self.validate = Layout(NVEC), validate
        self.action = self._ours().sample()

    def _ours(self) -> MaskedMultiCategorical:
        return MaskedMultiCategorical(
            self.logits, self.layout, self.mask, validate_args=self.validate
        )

    def runs(self) -> Runs:
        """Each way of doing it; SB3-contrib's where it is installed."""
        ways: Runs = {"ours": self.ours, "loop": self.loop, "torchrl": self.torchrl}
        if importlib.util.find_spec("sb3_contrib") is not None:
            ways["sb3-contrib"] = self.sb3
        return {name: partial(self._backward, way) for name, way in ways.items()}

    def _backward(self, way: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self.logits.grad = None
        log_prob, entropy = way()
        ((log_prob * self.weights[0]).sum() + (entropy * self.weights[1]).sum()).backward()

    def ours(self) -> tuple[Tensor, Tensor]:
        dist = self._ours()
        return dist.log_prob(self.action), dist.entropy()

    def loop(self) -> tuple[Tensor, Tensor]:
        return loop_over_dimensions(self.logits, NVEC, self.mask, self.action)

    def torchrl(self) -> tuple[Tensor, Tensor]:
        parts = zip(self.logits.split(NVEC, -1), self.mask.split(NVEC, -1), strict=True)
        names = [str(dim) for dim in range(len(NVEC))]
        batch = [len(self.action)]
        params = {
            name: {"logits": logits, "mask": mask}
            for name, (logits, mask) in zip(names, parts, strict=True)
        }
        with set_composite_lp_aggregate(True):
            dist = CompositeDistribution(
                TensorDict(params, batch), distribution_map=dict.fromkeys(names, MaskedCategorical)
            )
            action = TensorDict(dict(zip(names, self.action.unbind(-1), strict=True)), batch)
            return dist.log_prob(action), dist.entropy()

    def sb3(self) -> tuple[Tensor, Tensor]:
        from sb3_contrib.common.maskable.distributions import MaskableMultiCategoricalDistribution

        dist = MaskableMultiCategoricalDistribution(NVEC).proba_distribution(self.logits)
        dist.apply_masking(self.mask)
        return dist.log_prob(self.action), dist.entropy()


class Choices:
    """ClipPPO of one masked choice out of very many, without a critic."""

    def __init__(self, batch: int, n: int = MANY, legal_share: float = 0.01) -> None:
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(OBS, WIDTH), nn.Tanh())
        head = CategoricalHead("action", n, mask=True)
        backbone = TensorDictModule(self.body, ["observation"], ["hidden"])
        actor = make_actor(backbone, head, num_features=WIDTH)
        mask = torch.rand(batch, n) < legal_share
        mask[:, 0] = True
        inputs = {"observation": torch.randn(batch, OBS), "action_mask": mask}
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            td = actor(TensorDict(inputs, [batch]))
        td["advantage"] = torch.randn(batch, 1)
        self.td = td.exclude("action_logits", "hidden")
        self.loss = ClipPPOLoss(actor)
        self.plain_body, self.plain_linear = (
            copy.deepcopy(self.body),
            copy.deepcopy(actor[1].module[0]),
        )
        self.plain = dict(self.td.items())

    def losses(self) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        """Forward of tdheads and of plain PyTorch."""

        def total(out: Any) -> Tensor:
            return out["loss_objective"] + out["loss_entropy"]

        return (
            lambda: total(self.loss(self.td)),
            lambda: total(choice_loss(self.plain_body, self.plain_linear, self.plain)),
        )

    def runs(self) -> Runs:
        ours, plain = self.losses()
        return {"ours": lambda: ours().backward(), "plain": lambda: plain().backward()}
