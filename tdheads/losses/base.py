"""The one forward of all losses."""

from __future__ import annotations

import abc
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor
from torchrl.objectives.utils import distance_loss

from tdheads.checks import missing, require, shape_error, show
from tdheads.keys import ENTROPY, LOG_PROB, NestedKey, as_key, as_path, suffixed
from tdheads.losses import functional as F
from tdheads.losses.adapter import leaf_entropies
from tdheads.losses.module import PolicyLossModule
from tdheads.losses.policy import PolicyRows, advantage_rows, policy_rows
from tdheads.losses.rows import Valid
from tdheads.reduce import add, masked_max, masked_mean, masked_sum, mean_leaves, sum_leaves


class PolicyLoss(PolicyLossModule):
    r"""Base of the losses: one forward, and one hole, ``_surrogate``, that a variant fills.

    With leaves l, valid rows V and advantage A,

    .. math:: \log w = \sum_l \log p_{new}(a_l) - \log p_{old}(a_l)

    .. math:: L_{objective} = -\mathrm{mean}_V\, s(w, A), \quad
              L_{entropy} = -\mathrm{mean}_V \sum_l c_l H_l, \quad
              L_{critic} = c_v\, \mathrm{mean}_V\, d(V(s), R)

    Rows that the validity mask (``loss_mask_key``) excludes reach no term, no statistic and no
    parameter, whatever they hold.
    """

    @abc.abstractmethod
    def _surrogate(self, log_ratio: Tensor, advantage: Tensor, log_weight: Tensor | None) -> Tensor:
        """Return what is maximised, per row."""

    def _variant_keys(self) -> list[NestedKey]:
        return []

    def _write_variant(self, out: TensorDictBase, rows: PolicyRows) -> None:
        """Write the figures of ``_variant_keys``."""

    @property
    def out_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` writes."""
        if self.__dict__.get("_out_keys") is not None:
            return self._out_keys
        keys: list[NestedKey] = ["loss_objective", *self._variant_keys(), "kl_approx"]
        keys += ["ESS", "max_ratio", "mean_ratio", "ratio_clamped"]
        if len(self.log_prob_keys) == len(self.action_keys):
            keys += [("leaf_kl_approx", *as_path(key)) for key in self.action_keys]
        if self.entropy_bonus:
            keys += ["loss_entropy", "entropy"]
            keys += self._entropy_keys()
        if self.critic_coeff is not None:
            keys.append("loss_critic")
            keys += ["value_clip_fraction"] if self.clip_value is not None else []
            keys += ["explained_variance"] if self.log_explained_variance else []
        return keys

    @out_keys.setter
    def out_keys(self, keys: list[NestedKey]) -> None:
        self._out_keys = keys

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss terms and the figures that go with them; see the class."""
        td = self._with_advantage(tensordict)
        valid = self._valid(td)
        if valid is not None:
            td = self._without_garbage(td, valid)
        rows = policy_rows(self, td, valid)
        advantage = self._scaled_advantage(td, rows)
        out = TensorDict()
        gain = self._surrogate(rows.log_ratio, advantage, rows.log_weight)
        out.set("loss_objective", self._reduce(-gain, rows.valid))
        self._write_variant(out, rows)
        self._write_ratios(out, rows)
        if self.entropy_bonus:
            self._write_entropy(out, rows)
        if self.critic_coeff is not None:
            self._write_critic(out, td, valid)
        return out

    def _reduce(self, rows: Tensor, valid: Tensor | None) -> Tensor:
        if self.reduction == "mean":
            return masked_mean(rows, valid)
        if self.reduction == "sum":
            return masked_sum(rows, valid)
        return rows if valid is None else torch.where(valid, rows, 0)

    # ---- the advantage

    def _with_advantage(self, tensordict: TensorDictBase) -> TensorDictBase:
        td = tensordict.copy()
        if td.get(self.tensor_keys.advantage, None) is not None:
            return td
        if self.critic_network is None:
            todo = "a loss without a critic cannot compute it: run a value estimator first"
            require(td, self.tensor_keys.advantage, todo)
        todo = (
            f"run a value estimator, e.g. GAE, or store it for {show(self.tensor_keys.advantage)}"
        )
        for name in ("reward", "done"):  # terminated is done where it is not stored
            require(td, as_key(("next", getattr(self.tensor_keys, name))), todo)
        params = self.critic_network_params.detach() if self.functional else None
        targets = self.target_critic_network_params if self.functional else None
        self.value_estimator(td, params=params, target_params=targets)
        if self.advantage_norm is not None and self.training:
            target = td.get(self.tensor_keys.value_target)
            valid = self._valid(td)
            rows = None if valid is None else valid.for_values(target.shape[:-1])
            self.advantage_norm.update(target if rows is None else target[rows])
        return td

    def _scaled_advantage(self, td: TensorDictBase, rows: PolicyRows) -> Tensor:
        advantage = advantage_rows(self, td, rows.log_ratio.shape)
        if self.advantage_norm is not None:
            return advantage / self.advantage_norm.scale()
        if not self.normalize_advantage:
            return advantage
        # dims are given for the entry as it is stored, which has a trailing dim
        exclude = [dim % (advantage.ndim + 1) for dim in self.normalize_advantage_exclude_dims]
        return F.standardize(advantage, rows.valid, [d for d in exclude if d < advantage.ndim])

    # ---- what is written

    @torch.no_grad()
    def _write_ratios(self, out: TensorDictBase, rows: PolicyRows) -> None:
        log_ratio = rows.log_ratio
        out.set("kl_approx", masked_mean(-log_ratio, rows.valid))
        if rows.leaf_log_ratio is not None:
            for key in self.action_keys:
                leaf = rows.leaf_log_ratio.get(suffixed(key, LOG_PROB))
                out.set(("leaf_kl_approx", *as_path(key)), masked_mean(-leaf, rows.valid))
        if rows.log_weight is not None:
            log_ratio = log_ratio + rows.log_weight
        ratio = F.ratio(log_ratio)
        out.set("ESS", F.effective_sample_size(log_ratio, rows.valid))
        out.set("max_ratio", masked_max(ratio, rows.valid))
        out.set("mean_ratio", masked_mean(ratio, rows.valid))
        out.set("ratio_clamped", F.count_clamped(log_ratio, rows.valid))

    def _entropy_keys(self) -> list[tuple[str, ...]]:
        """Return where the leaves' entropies are written; that of an only leaf is ``entropy``."""
        leaves = self.action_keys if len(self.action_keys) > 1 else []
        return [("composite_entropy", *as_path(suffixed(key, ENTROPY))) for key in leaves]

    def _write_entropy(self, out: TensorDictBase, rows: PolicyRows) -> None:
        leaves = leaf_entropies(rows.dist, self.samples_mc_entropy)
        entropies = [leaves.get(suffixed(key, ENTROPY)) for key in self.action_keys]
        coeff = self.coefficients(self.action_keys)
        # a coefficient of 0 drops the term: 0 * inf would be nan
        bonus = [torch.where(c == 0, 0, c * h) for c, h in zip(coeff, entropies, strict=True)]
        out.set("loss_entropy", self._reduce(-add(bonus), rows.valid))
        out.set("entropy", masked_mean(sum_leaves(leaves).detach(), rows.valid))
        for name, entropy in zip(self._entropy_keys(), entropies, strict=False):
            out.set(name, masked_mean(entropy.detach(), rows.valid))

    def _write_critic(self, out: TensorDictBase, td: TensorDictBase, valid: Valid | None) -> None:
        loss, clipped, explained = self.loss_critic(td, valid)
        if isinstance(loss, TensorDictBase):  # of a critic that writes several values
            loss = sum_leaves(loss)
            clipped, explained = (
                mean_leaves(x) if isinstance(x, TensorDictBase) else None
                for x in (clipped, explained)
            )
        rows = None if valid is None else valid.for_values(loss.shape[:-1])
        out.set("loss_critic", self._reduce(loss.squeeze(-1), rows))
        if clipped is not None:
            out.set("value_clip_fraction", masked_mean(clipped.squeeze(-1), rows))
        if explained is not None:
            out.set("explained_variance", explained)

    def loss_critic(
        self, tensordict: TensorDictBase, valid: Valid | None = None
    ) -> tuple[Tensor | TensorDict, Tensor | TensorDict | None, Tensor | TensorDict | None]:
        """Return the weighted critic loss and its clipping per row, and the explained variance.

        Shapes: ``[*B, 1]``, ``[*B, 1]`` or ``None`` without ``clip_value``, ``[]`` or ``None``; for
        a critic that writes a tensordict of values, tensordicts of them.
        """
        td = tensordict.detach() if self.separate_losses else tensordict.copy()
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
            value = require(
                critic(td), keys.value, "name the critic's output with set_keys(value=)"
            )
        return value, target, old

    def _critic_terms(
        self, value: Tensor, target: Tensor, old: Tensor | None, valid: Valid | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if value.shape != target.shape:
            keys = self.tensor_keys
            todo = f"it has to have the shape of the critic's output, {show(keys.value)}"
            raise shape_error(keys.value_target, value.shape, target, todo)
        loss = distance_loss(value, target, self.loss_critic_type)
        clipped = None
        if old is not None:
            near = F.clip_value(value, old, self.clip_value)
            loss = torch.maximum(loss, distance_loss(near, target, self.loss_critic_type))
            clipped = ((value - old).detach().abs() > self.clip_value).to(loss.dtype)
        explained = None
        if self.log_explained_variance:
            rows = None if valid is None else valid.for_values(value.shape[:-1])
            explained = F.explained_variance(
                value.detach().squeeze(-1), target.detach().squeeze(-1), rows
            )
        coeff = 1.0 if self.critic_coeff is None else self.critic_coeff
        return coeff * loss, clipped, explained
