"""The critic's term of a loss."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.modules import set_recurrent_mode
from torchrl.objectives.utils import distance_loss

from tdheads.checks import check_float, eager, missing, require, shape_error, show
from tdheads.entries import shallow_copy
from tdheads.keys import NestedKey, as_path
from tdheads.losses import functional as F
from tdheads.losses.buffers import move
from tdheads.losses.module import PolicyLossModule
from tdheads.losses.rows import Valid
from tdheads.reduce import masked_mean, masked_sum, mean_leaves, sum_leaves
from tdheads.running import run

#: what a loss writes: key -> tensor
Figures = dict[NestedKey, Tensor]


class CriticLossModule(PolicyLossModule):
    r"""A loss with the critic's term.

    .. math:: L_{critic} = c_v\, \mathrm{mean}_V\, d(V(s), R)
    """

    def _reduce(self, rows: Tensor, valid: Tensor | None) -> Tensor:
        if self.reduction == "mean":
            return masked_mean(rows, valid)
        if self.reduction == "sum":
            return masked_sum(rows, valid)
        return rows if valid is None else torch.where(valid, rows, 0)

    def _write_critic(self, out: Figures, td: TensorDictBase, valid: Valid | None) -> None:
        if type(self).loss_critic is CriticLossModule.loss_critic:
            # the copy that the actor wrote into is the loss's own
            batch = td.detach() if self.separate_losses else td
            loss, clipped, explained = self._loss_critic(batch, valid)
        else:
            loss, clipped, explained = self.loss_critic(td, valid)
        if not isinstance(loss, Tensor):  # of a critic that writes several values
            loss = sum_leaves(loss)
            clipped, explained = (
                mean_leaves(x) if isinstance(x, TensorDictBase) else None
                for x in (clipped, explained)
            )
        rows = None if valid is None else valid.for_values(loss.shape[:-1])
        whole = rows is None and self.reduction != "none"
        out["loss_critic"] = self._reduce(loss if whole else loss.squeeze(-1), rows)
        if clipped is not None:
            out["value_clip_fraction"] = masked_mean(clipped.squeeze(-1), rows)
        if explained is not None:
            out["explained_variance"] = explained

    def loss_critic(
        self, tensordict: TensorDictBase, valid: Valid | None = None
    ) -> tuple[Tensor | TensorDict, Tensor | TensorDict | None, Tensor | TensorDict | None]:
        """Return the weighted critic loss and its clipping per row, and the explained variance.

        Shapes: ``[*B, 1]``, ``[*B, 1]`` or ``None`` without ``clip_value``, ``[]`` or ``None``; for
        a critic that writes a tensordict of values, tensordicts of them.
        """
        td = tensordict.detach() if self.separate_losses else shallow_copy(tensordict)
        with set_recurrent_mode(True):
            return self._loss_critic(td, valid)

    def _loss_critic(self, td: TensorDictBase, valid: Valid | None) -> tuple[Any, Any, Any]:
        value, target, old = self._values(td)
        if isinstance(value, Tensor):
            return self._critic_terms(value, target, old, valid)
        names = list(value.keys(include_nested=True, leaves_only=True))
        olds = [None if old is None else old.get(name) for name in names]
        terms = [
            self._critic_terms(value.get(name), target.get(name), one, valid)
            for name, one in zip(names, olds, strict=True)
        ]
        loss, clipped, explained = (
            None if column[0] is None else TensorDict(dict(zip(names, column, strict=True)))
            for column in zip(*terms, strict=True)
        )
        return loss, clipped, explained

    def _values(self, td: TensorDictBase) -> tuple[Any, Any, Any]:
        """Return the critic's output, its target and, for clipping, its output at collection."""
        keys = self.tensor_keys
        target = require(td, keys.value_target, "run a value estimator, e.g. GAE, on the batch")
        old = None
        if self.clip_value is not None:
            old = td.get(keys.value, None)
            if old is None:
                todo = (  # in TorchRL's words
                    f"clip_value is set to {self.clip_value}, but the key {keys.value} was not"
                    " found in the input tensordict. Make sure that the value passed to PPO exists"
                    " in the input tensordict."
                )
                raise missing(keys.value, td, todo)
            if isinstance(old, TensorDictBase):
                old = old.copy()  # the critic writes into the one in td
        with self.using("critic_network") as critic:
            if keys.value not in critic.out_keys and eager():
                self._check_critic(critic)
            value = require(
                run(critic, td), keys.value, "name the critic's output with set_keys(value=)"
            )
        return value, target, old

    def _check_critic(self, critic: Any) -> None:
        """Refuse a critic whose output is elsewhere: the stored value would stand in for it."""
        path = as_path(self.tensor_keys.value)
        written = [as_path(key) for key in critic.out_keys]
        if not any(key[: len(path)] == path for key in written):
            raise ValueError(
                f"{show(self.tensor_keys.value)}: expected the critic to write it, got out_keys="
                f"{list(critic.out_keys)}; name the critic's output with set_keys(value=...)"
            )

    def _critic_terms(
        self, value: Tensor, target: Tensor, old: Tensor | None, valid: Valid | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        check_float(self.tensor_keys.value_target, target)
        if value.shape != target.shape:
            keys = self.tensor_keys
            todo = f"it has to have the shape of the critic's output, {show(keys.value)}"
            raise shape_error(keys.value_target, value.shape, target, todo)
        rows = None if valid is None else valid.for_values(value.shape[:-1])
        if old is not None and old.shape != value.shape:
            todo = "it has to be the critic's output at collection"
            raise shape_error(self.tensor_keys.value, value.shape, old, todo)
        if self.value_norm is not None:
            value, target, old = self._normalized(value, target, old, rows)
        loss = distance_loss(value, target, self.loss_critic_type)
        clipped = None
        if old is not None:
            near = F.clip_value(value, old, self.clip_value)
            loss = torch.maximum(loss, distance_loss(near, target, self.loss_critic_type))
            clipped = ((value - old).detach().abs() > self.clip_value).to(loss.dtype)
        explained = None
        if self.log_explained_variance:
            judged = None if rows is None else rows.unsqueeze(-1)
            explained = F.explained_variance(value.detach(), target.detach(), judged)
        coeff = self.critic_coeff
        return loss if coeff is None else coeff * loss, clipped, explained

    def _normalized(
        self, value: Tensor, target: Tensor, old: Tensor | None, rows: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Put values and target on the scale of the running statistics, which the target moves."""
        norm = self.value_norm
        assert norm is not None
        target = target.detach()
        if self.training and torch.is_grad_enabled():
            move(norm, target, rows)
        old = None if old is None else norm.normalize(old)
        return norm.normalize(value), norm.normalize(target), old
