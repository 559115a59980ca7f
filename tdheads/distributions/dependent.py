"""The joint distribution of leaves that depend on each other, by the chain rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from tdheads.checks import require
from tdheads.distributions.action import ActionDistribution
from tdheads.distributions.conditional import Actions, Conditional
from tdheads.distributions.draw import draw
from tdheads.distributions.gated import GatedLeaf
from tdheads.keys import ENTROPY, KL, LOG_PROB, NestedKey, suffixed
from tdheads.reduce import add, sum_event


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
        relevance: dict[NestedKey, Tensor | None] = {}
        for key, leaf in leaves.items():
            relevance[key] = rows = _relevance(leaves, key, taken, relevance)
            dist = leaf.build(taken, rows)
            dists[key] = dist = dist if rows is None else GatedLeaf(dist, rows)
            if pick is not None:
                taken[key] = leaf.write(pick(dist))
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
        out = {suffixed(key, ENTROPY): self._expect(key, _entropy) for key in self.leaves}
        return TensorDict(out, self.batch_shape)

    def kl(self, other: ActionDistribution) -> TensorDictBase:
        """KL from this distribution to ``other`` by the chain rule, weighted by this one."""
        if not isinstance(other, DependentDistribution) or set(other.leaves) != set(self.leaves):
            raise KeyError(f"KL: expected the leaves {list(self.leaves)}, got {list(other)}")
        out = {suffixed(k, KL): self._expect(k, kl_divergence, other) for k in self.leaves}
        return TensorDict(out, self.batch_shape)

    def _expect(
        self,
        key: NestedKey,
        measure: Callable[..., Tensor],
        *others: DependentDistribution,
    ) -> Tensor:
        """Return the expectation of a measure of one leaf over the actions of its ancestors."""
        leaf, ancestors = self.leaves[key], self.ancestors(key)
        everyone = (self, *others)
        if not all(dist.leaves[k].exact for dist in everyone for k in (*ancestors, key)):
            if any(dist.prefix is None for dist in everyone):
                raise ValueError(
                    f"{key!r}: its distribution is known at given actions only; store the actions,"
                    " or build the head with enumerate_parents=True"
                )
            return measure(*(dist.dists[key] for dist in everyone))
        if not ancestors:  # built, checks included, when the actions were walked along
            return measure(
                *(dist.dists.get(key) or dist.leaves[key].build({}) for dist in everyone)
            )
        actions, extra = self._grid(ancestors)
        weight, relevance = self._weigh(ancestors, actions, extra)
        relevant = _relevance(self.leaves, key, actions, relevance)
        weight = weight if relevant is None else torch.where(relevant, weight, 0)
        given = actions if leaf.reads else {}
        value = measure(*(dist.leaves[key].build(given, lenient=True) for dist in everyone))
        # values under impossible parents count nothing, and may be anything: infinite ones are
        # taken out before the product, whose gradient would be 0 * inf
        return (weight * torch.where(weight > 0, value, 0)).sum(0)

    def ancestors(self, key: NestedKey) -> list[NestedKey]:
        """Return every leaf that a leaf depends on, directly or not, in order."""
        found: set[NestedKey] = set()
        for name in reversed(list(self.leaves)):
            if name == key or name in found:
                found |= {*self.leaves[name].when, *self.leaves[name].reads}
        return [name for name in self.leaves if name in found]

    def _grid(self, keys: list[NestedKey]) -> tuple[dict[NestedKey, Tensor], dict[Any, Tensor]]:
        """Return every combination of the leaves' actions, ``[combinations, *B, *event]`` each.

        And where an action is the 0 of an irrelevant leaf that is none of its choices.
        """
        rows = self.row_shape
        supports, extra = [], {}
        for key in keys:
            support = self.leaves[key].support()
            assert support is not None  # what is exact has finitely many parents
            if self.leaves[key].when and not self.leaves[key].has_zero:
                extra[key] = len(support)
                support = torch.cat([support, torch.zeros_like(support[:1])])
            supports.append(support)
        places = torch.cartesian_prod(*(torch.arange(len(s)) for s in supports))
        indices = dict(zip(keys, places.view(-1, len(keys)).unbind(-1), strict=True))
        grid = {}
        for key, support in zip(keys, supports, strict=True):
            values = support[indices[key].to(support.device)]
            event = values.shape[1:]
            grid[key] = values.view((-1, *[1] * len(rows), *event)).expand(-1, *rows, *event)
        added = {key: indices[key] == place for key, place in extra.items()}
        return grid, added

    def _weigh(
        self, keys: list[NestedKey], actions: Actions, extra: Mapping[Any, Tensor]
    ) -> tuple[Tensor, dict[NestedKey, Tensor | None]]:
        """Return the probability of every combination, and where each leaf is relevant in it."""
        log_probs = []
        relevance: dict[NestedKey, Tensor | None] = {}
        for key in keys:
            leaf = self.leaves[key]
            relevance[key] = rows = _relevance(self.leaves, key, actions, relevance)
            action, added = actions[key], extra.get(key)
            if added is not None:  # not a choice: another stands in, to be scored as impossible
                added = added.to(action.device)
                action = torch.where(_with_dims(added, action.ndim), action[:1], action)
            log_prob = leaf.build(actions, lenient=True).log_prob(action)
            if rows is not None:  # an irrelevant leaf is 0 for certain
                if added is None:
                    zero = sum_event((action != 0).long(), action.ndim - log_prob.ndim) == 0
                else:
                    zero = _with_dims(added, log_prob.ndim).expand_as(log_prob)
                    log_prob = log_prob.masked_fill(zero, -torch.inf)
                certain = torch.zeros_like(log_prob).masked_fill(~zero, -torch.inf)
                log_prob = torch.where(rows, log_prob, certain)
            log_probs.append(log_prob)
        return add(log_probs).exp(), relevance


def _with_dims(first: Tensor, ndim: int) -> Tensor:
    return first.view(-1, *[1] * (ndim - 1))


def _relevance(
    leaves: Mapping[NestedKey, Conditional],
    key: NestedKey,
    actions: Actions,
    known: Mapping[NestedKey, Tensor | None],
) -> Tensor | None:
    """Return where a leaf is relevant: each parent is, and took one of the choices."""
    rows: Tensor | None = None
    for parent, choices in leaves[key].when.items():
        index = leaves[parent].index(actions[parent])
        taken = functools.reduce(torch.logical_or, [index == choice for choice in choices])
        for more in (known[parent], rows):
            taken = taken if more is None else taken & more
        rows = taken
    return rows


def _entropy(dist: Distribution) -> Tensor:
    return dist.entropy()
