"""An action space with networks and a batch, and what each implementation does with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torchrl.objectives
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, set_composite_lp_aggregate
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

import tdheads
from benchmarks.leaves import Batch, Leaf
from benchmarks.reference import critic_loss
from benchmarks.spaces import Space
from benchmarks.surrogates import policy_loss

OBS, WIDTH = 32, 64
LOSSES = {"ppo": "PPOLoss", "clip": "ClipPPOLoss", "klpen": "KLPENPPOLoss", "spo": "SPOLoss"}
Run = Callable[[], Any]
Runs = dict[str, Run]


def mlp(out: int | None = None) -> nn.Sequential:
    """Two hidden layers, and a linear one."""
    layers: list[nn.Module] = [nn.Linear(OBS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, *([] if out is None else [nn.Linear(WIDTH, out)]))


class PlainPolicy(nn.Module):
    """Networks and leaves in plain PyTorch, on a dict of tensors."""

    def __init__(self, body: nn.Module, layer: TensorDictModule, leaves: list[Leaf]) -> None:
        super().__init__()
        self.body, self.layer, self.leaves = body, layer.module, leaves
        # the networks of leaves after others are among the parameters
        self.nets = nn.ModuleList(leaf.net for leaf in leaves if hasattr(leaf, "net"))
        self.reads, self.writes = layer.in_keys[1:], layer.out_keys

    def params(self, batch: Batch) -> Batch:
        """Return the batch with features and parameters."""
        hidden = self.body(batch["observation"])
        parts = self.layer(hidden, *(batch[key] for key in self.reads))
        parts = parts if isinstance(parts, tuple) else (parts,)
        return {**batch, "hidden": hidden, **dict(zip(self.writes, parts, strict=True))}

    @torch.no_grad()
    def act(self, batch: Batch) -> Batch:
        """Draw an action of every leaf, in order, and score it."""
        batch = self.params(batch)
        for leaf in self.leaves:
            scores = leaf.scores(batch)
            batch[leaf.key] = action = leaf.act(scores)
            batch[leaf.key + "_log_prob"] = leaf.log_prob(scores, action)
        return batch


class Policies:
    """The policies of all implementations, with the same weights, and a batch of each."""

    def __init__(self, space: Space, batch: int) -> None:
        torch.manual_seed(0)
        self.space = space
        rows = (batch, *space.agents)
        body, critic = mlp(), mlp(1)
        self.head = space.head()
        body_module = TensorDictModule(body, ["observation"], ["hidden"])
        self.actor = tdheads.make_actor(body_module, self.head, num_features=WIDTH)
        self.critic = TensorDictModule(critic, ["observation"], ["state_value"])
        inputs = {"observation": torch.randn(*rows, OBS), **space.masks(rows)}
        self.inputs = TensorDict(inputs, rows)
        self.targets = {k: torch.randn(*rows, 1) for k in ("advantage", "value_target")}
        self.td = self.collect(self.actor)
        self.torchrl_td = self.collect(self.torchrl_actor()) if space.torchrl else None
        for param in (*self.actor.parameters(), *critic.parameters()):
            param.data += 0.02 * torch.randn_like(param)  # as an update would
        leaves = space.leaves(self.head)
        self.plain = PlainPolicy(copy.deepcopy(body), copy.deepcopy(self.actor[1]), leaves)
        self.plain_critic = copy.deepcopy(critic)
        self.batch: Batch = dict(self.td.items())

    def torchrl_actor(self) -> nn.Module:
        """Return TorchRL's actor with copies of the networks."""
        assert self.space.torchrl is not None
        return self.space.torchrl.actor(*copy.deepcopy((self.actor[0], self.actor[1])))

    def collect(self, actor: nn.Module) -> TensorDict:
        """Act once; advantages and targets are random."""
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            return actor(self.inputs.clone()).update(self.targets)

    def acting(self) -> Runs:
        """One step of each actor."""
        inputs = dict(self.inputs.items())

        def act(actor: nn.Module) -> Run:
            @set_exploration_type(ExplorationType.RANDOM)
            @torch.no_grad()
            def run() -> Any:
                return actor(self.inputs.copy())

            return run

        runs: Runs = {"tdheads": act(self.actor), "plain": lambda: self.plain.act(inputs)}
        if self.space.torchrl:
            runs["torchrl"] = act(self.torchrl_actor())
        return runs

    # ---- losses

    def losses(self, name: str, *, backward: bool = True, compiled: bool = False) -> Runs:
        """Forward, or forward and backward, of the loss of each implementation."""
        terms: Runs = {"tdheads": self._our_loss(name), "plain": lambda: self.plain_loss(name)}
        if name in self.space.torchrl_losses:
            terms["torchrl"] = self._torchrl_loss(name)
        if compiled:
            terms.pop("torchrl", None)  # TorchRL's loss fails to compile around masked leaves
            terms = {impl: torch.compile(run, fullgraph=True) for impl, run in terms.items()}
        return {impl: _stepping(run, backward) for impl, run in terms.items()}

    def plain_loss(self, name: str) -> dict[str, Tensor]:
        """Return the terms and figures of the plain loss."""
        batch, leaves = self.plain.params(self.batch), self.plain.leaves
        scores = [leaf.scores(batch) for leaf in leaves]
        pairs = [leaf.both(s, batch[leaf.key]) for leaf, s in zip(leaves, scores, strict=True)]
        old = [batch[leaf.key + "_log_prob"] for leaf in leaves]
        kls = []
        if name == "klpen":
            stored = [leaf.stored(self.batch) for leaf in leaves]
            kls = [f.kl(p, q) for f, p, q in zip(leaves, stored, scores, strict=True)]
        out = policy_loss(
            name, [p[0] for p in pairs], [p[1] for p in pairs], old, batch["advantage"], kls
        )
        return out | critic_loss(self.plain_critic(batch["observation"]), batch["value_target"])

    def _our_loss(self, name: str) -> Run:
        # beta would run away when one batch is used a thousand times
        fixed = {"adapt_beta": False} if name == "klpen" else {}
        loss = getattr(tdheads, LOSSES[name])(self.actor, self.critic, functional=False, **fixed)
        return lambda: loss(self.td)

    def _torchrl_loss(self, name: str) -> Run:
        critic = TensorDictModule(copy.deepcopy(self.critic.module), *_CRITIC)
        leaves = list(self.space.torchrl.kinds)
        with set_composite_lp_aggregate(False):
            loss = getattr(torchrl.objectives, LOSSES[name])(self.torchrl_actor(), critic)
            log_probs = [f"{leaf}_log_prob" for leaf in leaves]
            if len(leaves) > 1:
                loss.set_keys(action=leaves, sample_log_prob=log_probs)
            else:
                loss.set_keys(action=leaves[0], sample_log_prob=log_probs[0])

        @set_composite_lp_aggregate(False)
        def run() -> Any:
            return loss(self.torchrl_td)

        return run


_CRITIC = ["observation"], ["state_value"]


def _stepping(terms: Run, backward: bool) -> Run:
    if not backward:
        return terms

    def step() -> None:
        out = terms()
        (out["loss_objective"] + out["loss_entropy"] + out["loss_critic"]).backward()

    return step
