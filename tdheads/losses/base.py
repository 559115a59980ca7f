"""The one forward of all losses."""

from __future__ import annotations

import abc

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdheads.checks import eager
from tdheads.entries import packed
from tdheads.keys import ENTROPY, NestedKey, as_path, suffixed
from tdheads.losses import functional as F
from tdheads.losses.adapter import leaf_entropies
from tdheads.losses.advantage import estimate, scaled_advantages, with_advantage
from tdheads.losses.critic import CriticLossModule, Figures
from tdheads.losses.policy import Bounds, PolicyRows, Terms, policy_rows
from tdheads.losses.rows import check_order
from tdheads.reduce import add, masked_max, masked_means, sum_leaves
from tdheads.running import dispatched


class PolicyLoss(CriticLossModule):
    r"""Base of the losses: one forward, and one hole, ``_surrogate``, that a variant fills.

    With leaves l, valid rows V and advantage A,

    .. math:: \log w = \sum_l \log p_{new}(a_l) - \log p_{old}(a_l)

    .. math:: L_{objective} = -\mathrm{mean}_V\, s(w, A), \quad
              L_{entropy} = -\mathrm{mean}_V \sum_l c_l H_l, \quad
              L_{critic} = c_v\, \mathrm{mean}_V\, d(V(s), R)

    A loss of your own subclasses it as ``losses/spo.py`` does: ``_surrogate`` returns what is
    maximised from :class:`~tdheads.losses.policy.Terms`; with ``needs_kl = True`` they hold the KL.
    ``log_weight`` is there with ``delay_actor`` or ``max_importance_ratio`` only. A coefficient is
    registered with ``register_coeff_buffer`` and named in ``_schedulable_buffers`` and, with its
    range, in ``settings``.

    Rows that the validity mask (``loss_mask_key``) excludes reach no term, no statistic and no
    parameter, whatever they hold.
    """

    @abc.abstractmethod
    def _surrogate(self, terms: Terms) -> Tensor:
        """Return what is maximised, per row ``[*B]``."""

    def _bounds(self) -> Bounds | None:
        """Return bounds of the log-ratio that the terms hold, computed once in each forward."""
        return None

    def _variant_keys(self) -> list[NestedKey]:
        return []

    def _write_variant(self, out: Figures, rows: PolicyRows) -> None:
        """Write the figures of ``_variant_keys`` that are no mean over the rows."""

    def _variant_rows(self, rows: PolicyRows) -> dict[NestedKey, Tensor]:
        """Return the figures of ``_variant_keys`` that are a mean over the rows, before it."""
        return {}

    @property
    def out_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` writes."""
        if self.__dict__.get("_out_keys") is not None:
            return self._out_keys
        keys: list[NestedKey] = ["loss_objective", *self._variant_keys(), "kl_approx"]
        if self.aggregate == "none":
            keys += [("leaf_objective", *as_path(key)) for key in self.action_keys]
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

    @dispatched
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss terms and the figures that go with them; see the class."""
        if self._recurrent and eager():
            check_order(tensordict, self._valid(tensordict))
        td = with_advantage(self, tensordict)
        valid = self._valid(td)
        acting = self._acting(td, valid)
        judged = self._judged(valid, acting)
        td = self._without_garbage(td, acting, judged)
        rows = policy_rows(self, td, acting)
        out: Figures = {}
        objectives = self._objective(td, rows)
        terms = {key: self._reduce(objective, rows.valid) for key, objective in objectives.items()}
        out["loss_objective"] = add(terms.values())
        if self.aggregate == "none":
            for key, term in terms.items():
                out[("leaf_objective", *as_path(key))] = term.detach()
        self._write_variant(out, rows)
        entropies = self._write_entropy(out, rows) if self.entropy_bonus else {}
        with torch.no_grad():
            self._write_figures(out, rows, entropies)
        if self.critic_coeff is not None:
            self._write_critic(out, td, judged)
        return packed(out)

    @torch.no_grad()
    def estimate(
        self, tensordict: TensorDictBase, source: TensorDictBase | None = None
    ) -> TensorDictBase:
        """Write the advantage and the value target into the batch, with the loss's estimator.

        ``source`` is what is read, if it is not the batch itself.
        """
        estimate(self, tensordict, source)
        return tensordict

    def _objective(self, td: TensorDictBase, rows: PolicyRows) -> dict[NestedKey, Tensor]:
        """Return what is minimised, per row: of the joint action, or of each leaf."""
        found = scaled_advantages(self, td, rows.log_ratio.shape, rows.valid)
        if self.aggregate == "sum":
            kl = None if rows.kl is None else sum_leaves(rows.kl)
            terms = Terms(rows.log_ratio, found[0], rows.log_weight, kl, rows.bounds)
            return {"": -self._surrogate(terms)}
        if len(found) == 1:
            found = found * len(self.action_keys)
        gains = {}
        for key, advantage in zip(self.action_keys, found, strict=True):
            gain = self._surrogate(rows.leaf_terms(key, advantage))
            empty = getattr(rows.dist.dists[key], "empty", None)
            # a leaf with nothing to choose has no ratio: the row is one of the mean's, with 0
            gains[key] = -gain if empty is None else torch.where(empty, 0, -gain)
        return gains

    def _acted_on(self, rows: PolicyRows) -> list[Tensor]:
        """Return the log-ratios on which the surrogate acts: the joint one, or one per leaf."""
        if self.aggregate == "sum" or rows.leaf_log_ratio is None:
            return [rows.log_ratio]
        return [rows.leaf_log_ratio[key] for key in self.action_keys]

    # ---- what is written

    def _write_figures(
        self, out: Figures, rows: PolicyRows, entropies: dict[NestedKey, Tensor]
    ) -> None:
        log_ratio, valid = rows.log_ratio, rows.valid
        kl: dict[NestedKey, Tensor] = {"kl_approx": log_ratio}
        if rows.leaf_log_ratio is not None:
            for key in self.action_keys:
                kl[("leaf_kl_approx", *as_path(key))] = rows.leaf_log_ratio[key]
        if rows.log_weight is not None:
            log_ratio = log_ratio + rows.log_weight
        ratio = F.ratio(log_ratio)
        means = {**kl, "mean_ratio": ratio, **self._variant_rows(rows), **entropies}
        found = masked_means(list(means.values()), valid)
        found[: len(kl)].neg_()  # the first ones are log-ratios
        out.update(zip(means, found.unbind(), strict=True))
        out["ESS"] = F.effective_sample_size(ratio, valid)
        out["max_ratio"] = masked_max(ratio, valid)
        out["ratio_clamped"] = F.count_clamped(log_ratio, valid)

    def _entropy_keys(self) -> list[tuple[str, ...]]:
        """Return where the leaves' entropies are written; that of an only leaf is ``entropy``."""
        leaves = self.action_keys
        if len(leaves) == 1:
            return []
        return [("composite_entropy", *as_path(suffixed(key, ENTROPY))) for key in leaves]

    def _write_entropy(self, out: Figures, rows: PolicyRows) -> dict[NestedKey, Tensor]:
        """Write the bonus; return the entropies, whose means are figures."""
        leaves = leaf_entropies(rows.dist, self.samples_mc_entropy)
        entropies = [leaves[key] for key in self.action_keys]
        total, coeff = add(entropies), self.entropy_coeff
        # a coefficient of 0 drops the term: 0 * inf would be nan
        if coeff.ndim:
            coeffs = self.coefficients(self.action_keys)
            bonus = add(
                torch.where(c == 0, 0, c * h) for c, h in zip(coeffs, entropies, strict=True)
            )
            out["loss_entropy"] = self._reduce(-bonus, rows.valid)
        else:
            mean = self._reduce(total, rows.valid)
            out["loss_entropy"] = (-coeff * mean).masked_fill(coeff == 0, 0)
        return {"entropy": total, **dict(zip(self._entropy_keys(), entropies, strict=False))}
