"""The joint distribution of leaves that depend on each other, by the chain rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType
from torch import Tensor
from torch.distributions import Distribution, kl_divergence
from torch.distributions.constraints import Constraint

from tdheads.checks import require
from tdheads.distributions.action import ActionDistribution, Measure
from tdheads.distributions.combinations import Combinations, Relevance, relevant
from tdheads.distributions.conditional import Actions, Conditional
from tdheads.distributions.draw import draw
from tdheads.distributions.gated import GatedLeaf
from tdheads.keys import ENTROPY, KL, LOG_PROB, NestedKey, suffixed


class DependentDistribution(ActionDistribution):
    r"""Joint distribution of leaves that depend on earlier ones.

    .. math:: \log p(a) = \sum_l r_l(a_{<l}) \log p_l(a_l \mid a_{<l})

    with the relevance :math:`r_l` of a leaf. ``log_prob`` uses the actions it is given for the
    parents (teacher forcing); sampling draws the leaves in order. Entropy and KL follow the chain
    rule: exact where the parents can be enumerated,

    .. math:: H_l = \sum_v p(v)\, r_l(v)\, H(p_l(\cdot \mid v)), \quad
              KL_l = \sum_v p(v)\, r_l(v)\, KL(p_l(\cdot \mid v) \,\|\, q_l(\cdot \mid v))

    over the values v of all ancestors, else at the stored actions, which is an estimate.

    Args:
        leaves: leaf key -> :class:`Conditional`, parents before children.
        row_shape: batch shape ``[*B]`` of every leaf.
        batch_size: batch size of the tensordicts that are returned.
        prefix: the stored actions, if there are any.

    Raises:
        ValueError: by ``entropy`` and ``kl`` where neither enumeration nor stored actions do.

    Source: the chain rule of entropy and relative entropy, Cover and Thomas, "Elements of
    Information Theory", theorems 2.5.1 and 2.5.3.
    """

    def __init__(
        self,
        leaves: Mapping[NestedKey, Conditional],
        row_shape: torch.Size,
        batch_size: Any,
        prefix: Actions | None = None,
    ) -> None:
        dists, actions = self._walk(leaves, prefix) if prefix is not None else ({}, None)
        self._set(leaves, row_shape, batch_size, dists, actions)

    def _set(
        self,
        leaves: Mapping[NestedKey, Conditional],
        row_shape: torch.Size,
        batch_size: Any,
        dists: dict[NestedKey, Distribution],
        prefix: Actions | None,
    ) -> None:
        self.leaves, self.row_shape, self.prefix = dict(leaves), row_shape, prefix
        if dists:
            super().__init__(dists, batch_size)
            return
        self.dists, self.log_prob_key, self.entropy_key = {}, None, None
        Distribution.__init__(self, torch.Size(batch_size), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ActionDistribution:
        """Return a view with more batch dims in front."""
        shape, own = torch.Size(batch_shape), self.batch_shape
        lead = shape[: len(shape) - len(own)]
        if lead + own != shape:
            raise ValueError(f"expand: expected dims in front of {list(own)}, got {list(shape)}")
        leaves = {key: leaf.expand(lead) for key, leaf in self.leaves.items()}
        prefix = self.prefix
        if prefix is not None:
            prefix = {key: action.expand(*lead, *action.shape) for key, action in prefix.items()}
        return DependentDistribution(leaves, lead + self.row_shape, shape, prefix)

    def __iter__(self) -> Iterator[NestedKey]:
        yield from self.leaves

    def __len__(self) -> int:
        return len(self.leaves)

    # ---- one leaf after the other

    @staticmethod
    def _walk(
        leaves: Mapping[NestedKey, Conditional],
        actions: Actions,
        pick: Callable[[Distribution], Tensor] | None = None,
    ) -> tuple[dict[NestedKey, Distribution], dict[NestedKey, Tensor]]:
        """Return each leaf's distribution given the actions before it, which ``pick`` may draw."""
        taken, dists = dict(actions), {}
        relevance: Relevance = {}
        for key, leaf in leaves.items():
            relevance[key] = rows = relevant(leaves, key, taken, relevance)
            dist = leaf.build(taken, rows)
            gate = None if rows is None else GatedLeaf(dist, rows)
            dists[key] = dist if gate is None else gate
            if pick is not None:
                action = leaf.write(pick(dists[key]))
                # written is 0 where irrelevant, also beside bounds that 0 is outside of
                taken[key] = action if gate is None else gate.only_relevant(action)
        return dists, taken

    # ---- drawing

    def drawn(
        self, pick: Callable[[Distribution], Tensor], sample_shape: torch.Size = torch.Size()
    ) -> DependentDistribution:
        """Draw the leaves in order; what was drawn is the ``prefix`` of what is returned."""
        dists, actions = self._walk(self.leaves, {}, pick)
        new = object.__new__(type(self))
        rows = sample_shape + self.row_shape
        dists = {k: d if d.batch_shape == rows else d.expand(rows) for k, d in dists.items()}
        new._set(self.leaves, rows, sample_shape + self.batch_shape, dists, actions)
        return new

    @property
    def actions(self) -> TensorDictBase:
        """The actions of the ``prefix``."""
        return TensorDict(dict(self.prefix or {}), self.batch_shape)

    def draw(self, how: InteractionType) -> TensorDictBase:
        """Draw every leaf by the rule of an exploration type."""
        return self.drawn(lambda dist: draw(dist, how)).actions

    def sample(self, sample_shape: Any = None) -> TensorDictBase:
        """Draw every leaf without a gradient."""
        return self._sample(sample_shape, lambda dist, shape: dist.sample(shape))

    def rsample(self, sample_shape: Any = None) -> TensorDictBase:
        """Draw every leaf, with a gradient where the leaf offers one."""

        def rsample(dist: Distribution, shape: torch.Size) -> Tensor:
            return dist.rsample(shape) if dist.has_rsample else dist.sample(shape)

        return self._sample(sample_shape, rsample)

    def _sample(
        self, sample_shape: Any, fn: Callable[[Distribution, torch.Size], Tensor]
    ) -> TensorDictBase:
        shape = torch.Size(sample_shape or ())

        def pick(dist: Distribution) -> Tensor:
            # a leaf that depends on drawn actions has their sample dims already
            return fn(dist, shape if dist.batch_shape == self.row_shape else torch.Size())

        return self.drawn(pick, shape).actions

    # ---- scoring

    def log_prob(self, sample: TensorDictBase) -> TensorDictBase:
        """Log-prob of every leaf's action given the sample's actions of its parents."""
        actions = {k: require(sample, k, "give an action for every leaf") for k in self.leaves}
        dists = self.dists if self._is_prefix(actions) else self._walk(self.leaves, actions)[0]
        scores = {suffixed(k, LOG_PROB): dists[k].log_prob(a) for k, a in actions.items()}
        return TensorDict(scores, sample.batch_size)

    def _is_prefix(self, actions: Actions) -> bool:
        return self.prefix is not None and all(a is self.prefix[k] for k, a in actions.items())

    # ---- chain rule

    def entropy(self, *_: Any, **__: Any) -> TensorDictBase:
        """Entropy of every leaf by the chain rule, in nats."""
        return self._expect(ENTROPY, _entropy)

    def kl(self, other: ActionDistribution, measure: Measure = kl_divergence) -> TensorDictBase:
        """KL from this distribution to ``other`` by the chain rule, weighted by this one."""
        if not isinstance(other, DependentDistribution) or set(other.leaves) != set(self.leaves):
            raise KeyError(f"KL: expected the leaves {list(self.leaves)}, got {list(other)}")
        return self._expect(KL, measure, other)

    def _expect(
        self, suffix: str, measure: Measure, *others: DependentDistribution
    ) -> TensorDictBase:
        """Return the expectation of a measure of every leaf over the actions of its ancestors."""
        everyone = (self, *others)
        tables: dict[Any, tuple[Combinations, Tensor]] = {}
        out = {}
        for key in self.leaves:
            ancestors = self.ancestors(key)
            if not all(dist.leaves[k].exact for dist in everyone for k in (*ancestors, key)):
                value = measure(*(dist.given(key) for dist in everyone))
            elif not ancestors:  # built, checks included, when the actions were walked along
                value = measure(
                    *(dist.dists.get(key) or dist.leaves[key].build({}) for dist in everyone)
                )
            else:
                if ancestors not in tables:
                    table = Combinations(self.leaves, ancestors, self.row_shape)
                    tables[ancestors] = table, table.weight()
                value = self._mean(key, *tables[ancestors], measure, everyone)
            out[suffixed(key, suffix)] = value
        return TensorDict(out, self.batch_shape)

    def given(self, key: NestedKey) -> Distribution:
        """Return the distribution of a leaf at the stored actions."""
        if self.prefix is None:
            raise ValueError(
                f"{key!r}: its distribution is known at given actions only; store the actions,"
                " or build the head with enumerate_parents=True"
            )
        return self.dists[key]

    def _mean(
        self,
        key: NestedKey,
        table: Combinations,
        weight: Tensor,
        measure: Measure,
        everyone: Sequence[DependentDistribution],
    ) -> Tensor:
        rows = relevant(self.leaves, key, table.actions, table.relevance)
        weight = weight if rows is None else torch.where(rows, weight, 0)
        given = table.actions if self.leaves[key].reads else {}
        value = measure(*(dist.leaves[key].build(given, lenient=True) for dist in everyone))
        # values under impossible parents count nothing, and may be anything: infinite ones are
        # taken out before the product, whose gradient would be 0 * inf
        return (weight * torch.where(weight > 0, value, 0)).sum(0)

    def ancestors(self, key: NestedKey) -> tuple[NestedKey, ...]:
        """Return every leaf that a leaf depends on, directly or not, in order."""
        found: set[NestedKey] = set()
        for name in reversed(list(self.leaves)):
            if name == key or name in found:
                found |= {*self.leaves[name].when, *self.leaves[name].reads}
        return tuple(name for name in self.leaves if name in found)

    # ---- all actions

    @property
    def support(self) -> Constraint:
        """It has no constraint of its own: what is legal depends on the actions of the parents."""
        raise NotImplementedError("a dependent leaf has another support for each parent's action")

    def enumerate_support(self, expand: bool = True) -> TensorDictBase:
        """All joint actions, legal or not; an irrelevant leaf is 0. Batch size ``[n, *B]``."""
        endless = [key for key, leaf in self.leaves.items() if leaf.support() is None]
        if endless:
            raise NotImplementedError(f"{endless} take infinitely many values")
        table = Combinations(self.leaves, list(self.leaves), torch.Size())
        possible = table.possible()
        actions = {key: action[possible] for key, action in table.actions.items()}
        return self._spread(actions, expand)


def _entropy(dist: Distribution) -> Tensor:
    return dist.entropy()
