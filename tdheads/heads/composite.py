"""Several heads as one, with leaves that may depend on earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    InteractionType,
    TensorDictModule,
    TensorDictSequential,
)
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.checks import require, show
from tdheads.distributions import ActionDistribution, DependentDistribution
from tdheads.distributions.action import common_rows
from tdheads.distributions.draw import draw
from tdheads.heads.assembly import (
    collect_leaves,
    keys_read,
    lenient,
    parameter_modules,
    rows_of,
)
from tdheads.heads.base import Acted, Head
from tdheads.heads.dependence import HeadConditional
from tdheads.heads.leaf import LeafHead
from tdheads.heads.leaf_checks import (
    check_modes,
    check_parents,
    check_reads,
    check_stop,
    check_stored,
)
from tdheads.heads.projection import check_features, make_projection
from tdheads.keys import NestedKey, as_key


class CompositeHead(Head):
    r"""Several action leaves, in order, as one head.

    .. math:: \log p(a) = \sum_l r_l(a_{<l}) \log p_l(a_l \mid a_{<l})

    Reads what its heads read, writes every leaf ``K`` and ``K_log_prob`` ``[*B]``, and the
    parameters of its autoregressive leaves. A leaf head may depend on leaves before it:

    * ``when={"kind": [2, 3]}``: it is relevant only if the leaf ``"kind"`` took choice 2 or 3.
      Where it is not, its action is 0, and its log-prob, entropy, KL and gradient are 0. With
      several parents all have to agree; a child of an irrelevant parent is irrelevant.
    * ``mask_given="kind"``: its mask has one more dim, ``[*B, n_kind, n]``, and the row of the
      choice that ``"kind"`` took applies.
    * ``after=("kind",)``: its parameters depend on the parents' actions. The head owns a module
      that computes them from the features at ``in_key`` and those actions
      (:class:`~tdheads.heads.dependence.AfterParents`); ``parameters=`` on the leaf replaces it by
      a ``TensorDictModule`` that reads the parents' keys and writes the parameter keys.

    Leaves are drawn in order. When the tensordict holds actions (``get_dist`` in a loss), those are
    used for the parents: one parallel pass, nothing is drawn again. Entropy and KL follow the chain
    rule; for ``after`` leaves they are taken at the stored actions, an unbiased estimate, unless
    ``enumerate_parents=True`` (finitely many parents) asks for the exact value.

    Args:
        heads: the heads, parents first; a composite among them adds its leaves.
        in_key, num_features: features that ``after`` leaves read, as in ``make_actor``.
        head: ``return_log_prob``, ``default_interaction_type``, as for TorchRL's modules.

    Raises:
        ValueError: for no head, two leaves with one key, a parent that is missing, comes later or
            is not one choice (``when``, ``mask_given``).
        KeyError, ValueError: what its heads raise.

    Source: tensordict's ``CompositeDistribution``; conditional arguments: Vinyals et al.,
    "StarCraft II: A New Challenge for Reinforcement Learning", https://arxiv.org/abs/1708.04782.

    Example:
        >>> from tensordict import TensorDict
        >>> from tdheads import CategoricalHead, NormalHead
        >>> head = CompositeHead(
        ...     CategoricalHead("kind", n=3),
        ...     NormalHead("where", shape=(2,), when={"kind": [1]}),
        ... )
        >>> td = head.projection(8)(TensorDict({"hidden": torch.randn(4, 8)}, [4]))
        >>> td["kind_logits"] = torch.tensor([9.0, 0.0, 0.0]).expand(4, 3)
        >>> head(td)["where_log_prob"].tolist()
        [0.0, 0.0, 0.0, 0.0]
    """

    _after: list[NestedKey]
    parameter_modules: nn.ModuleList

    def __init__(
        self,
        *heads: Head,
        in_key: NestedKey = "hidden",
        num_features: int = 64,
        **head: Any,
    ) -> None:
        for part in heads:
            if not isinstance(part, Head):
                raise TypeError(
                    f"CompositeHead: expected heads, got a {type(part).__name__}; give them one by"
                    " one, CompositeHead(head, head)"
                )
        leaves, sequences = collect_leaves(heads)
        for leaf in leaves.values():
            check_parents(leaf, leaves)
            check_modes(leaf)
        in_key = as_key(in_key, "in_key")
        check_features(num_features)
        modules = parameter_modules(heads, leaves, in_key, num_features)
        for key, module in modules.items():
            check_reads(leaves[key], module, leaves)
        super().__init__(keys_read(leaves, modules), list(leaves), **head)
        self.heads = nn.ModuleList(leaves.values())
        self.parameter_modules = nn.ModuleList(modules.values())
        self._after = list(modules)
        self._features = in_key, num_features
        # combinations of parents that cannot happen are looked at too, without a check
        self._lenient = {key: lenient(leaf) for key, leaf in leaves.items()}
        #: sequences that are written as one tensor, with the leaves of their steps
        self.sequences = sequences
        self.dependent = any(leaf.dependence.parents for leaf in leaves.values())

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the leaves before the composite.

        tensordict's ``ProbabilisticTensorDictSequential`` takes the *last* probabilistic module it
        finds in ``modules()`` for the one that makes the distribution.
        """
        found = list(super().named_modules(*args, **kwargs))
        yield from (*found[1:], *found[:1])  # nothing is found where it was visited before

    @property
    def modules_after(self) -> dict[NestedKey, Any]:
        """Leaf -> the module that computes its parameters, for autoregressive leaves."""
        return dict(zip(self._after, self.parameter_modules, strict=True))

    @property
    def leaves(self) -> tuple[LeafHead, ...]:
        """The leaves, in order."""
        # nn.ModuleList takes long to say what it holds
        return tuple(self._modules["heads"]._modules.values())

    @property
    def projected(self) -> tuple[LeafHead, ...]:
        """The leaves whose parameters a network writes: all but the autoregressive ones."""
        return tuple(leaf for leaf in self.leaves if leaf.action_key not in self._after)

    @property
    def out_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` writes."""
        after = [leaf for leaf in self.leaves if leaf.action_key in self._after]
        params = [key for leaf in after for key in leaf.param_keys.values()]
        own = [key for leaf in self.leaves for key in leaf.own_keys.values()]
        return [*self._acted_keys(), *params, *own, *self.sequences]

    def projection(
        self, num_features: int, in_key: NestedKey = "hidden", gain: float = 0.01
    ) -> TensorDictModule:
        """Return one linear layer that writes the parameters of all but the ``after`` leaves."""
        check_features(num_features, gain)
        in_key = as_key(in_key, "in_key")
        default = [leaf for leaf in self.leaves if leaf.dependence.after]
        default = [leaf for leaf in default if leaf.parameters_module is None]
        if default and (in_key, num_features) != self._features:
            key, width = self._features
            raise ValueError(
                f"{show(default[0].action_key)}: its parameter module reads {width} features at"
                f" {key!r}, the projection {num_features} at {in_key!r}; build it with"
                f" CompositeHead(..., in_key={in_key!r}, num_features={num_features})"
            )
        own = [leaf for leaf in self.projected if type(leaf).projection is not Head.projection]
        rest = [leaf for leaf in self.projected if leaf not in own]
        layers = [leaf.projection(num_features, in_key, gain) for leaf in own]
        if rest:
            layers.insert(0, make_projection(rest, num_features, in_key, gain))
        return layers[0] if len(layers) == 1 else TensorDictSequential(*layers)

    def get_dist(self, tensordict: TensorDictBase) -> ActionDistribution:
        """Build the joint distribution; stored actions, if there, are those of the parents."""
        if not self.dependent:
            dists = {leaf.action_key: leaf.get_dist(tensordict) for leaf in self.leaves}
            return ActionDistribution(dists, tensordict.batch_size)
        actions = {key: tensordict.get(key, None) for key in self._out_keys}
        parents = {key for leaf in self.leaves for key in leaf.dependence.parents}
        forced = all(actions[key] is not None for key in parents)
        prefix = {key: action for key, action in actions.items() if action is not None}
        return self._dependent(tensordict, prefix if forced else None)

    @property
    def stored_keys(self) -> list[NestedKey]:
        """Every key that ``stored_dist`` reads: with dependent leaves, the actions too."""
        return [*self._param_keys(), *(self._out_keys if self.dependent else ())]

    def stored_dist(self, tensordict: TensorDictBase) -> ActionDistribution:
        """Build the joint distribution at collection from the stored parameters alone."""
        if not self.dependent:
            dists = {leaf.action_key: leaf.stored_dist(tensordict) for leaf in self.leaves}
            return ActionDistribution(dists, tensordict.batch_size)
        todo = "the distribution at collection is that at the actions that were taken"
        prefix = {key: require(tensordict, key, todo) for key in self._out_keys}
        return self._dependent(tensordict, prefix, stored=True)

    def _dependent(
        self,
        td: TensorDictBase,
        prefix: dict[NestedKey, Tensor] | None,
        written: dict[NestedKey, Tensor] | None = None,
        stored: bool = False,
    ) -> DependentDistribution:
        td = td.copy()  # a distribution is a value: others may write into the caller's tensordict
        by_key = {leaf.action_key: leaf for leaf in self.leaves}
        modules = self.modules_after
        rows = rows_of(self.leaves[0], td)
        for steps in self.sequences.values():
            check_stop(by_key[steps[0]], td)
        if prefix is not None:
            for key in {key for leaf in by_key.values() for key in leaf.dependence.parents}:
                check_stored(by_key[key], prefix[key], rows)
        leaves = {}
        for key, leaf in by_key.items():
            parents = {parent: by_key[parent] for parent in leaf.dependence.parents}
            module: Any = None if stored else modules.get(key)
            leaves[key] = HeadConditional(
                leaf, self._lenient[key], parents, td, rows, module, written, stored
            )
        return DependentDistribution(leaves, rows, td.batch_size, prefix)

    def act(self, td: TensorDictBase, how: InteractionType | None) -> Acted:
        """Draw the leaves in order, or take the stored actions; write sequences as a whole too."""
        acted = self._act(td, how)
        owning = [leaf for leaf in self.leaves if leaf.own_keys]
        if not (owning or self.sequences):
            return acted
        own: dict[NestedKey, Tensor] = {}
        for leaf in owning:
            drawn = how is not None and leaf.action_key in self._after
            source: Any = acted.params if drawn else td
            own |= leaf.own_params({n: source.get(k) for n, k in leaf.param_keys.items()})
        whole = {
            key: torch.stack([acted.actions[step] for step in steps], -1)
            for key, steps in self.sequences.items()
        }
        return acted._replace(params={**acted.params, **own, **whole})

    def _act(self, td: TensorDictBase, how: InteractionType | None) -> Acted:
        if how is None:
            actions = {key: require(td, key, "give the action to score") for key in self._out_keys}
            return Acted(self.get_dist(td), actions)
        if not self.dependent:
            dists, actions = self._independent(td), {}
            for leaf in self.leaves:
                actions[leaf.action_key] = leaf.write(draw(dists[leaf.action_key], how))
            return Acted(dists, actions)
        params: dict[NestedKey, Tensor] = {}
        taken = self._dependent(td, None, params).drawn(lambda leaf: draw(leaf, how))
        return Acted(taken, taken.prefix or {}, params)

    def _independent(self, td: TensorDictBase) -> Mapping[NestedKey, Distribution]:
        """Return the leaves of ``get_dist``, without the joint distribution around them."""
        if type(self).get_dist is not CompositeHead.get_dist:
            return self.get_dist(td).dists
        dists = {leaf.action_key: leaf.get_dist(td) for leaf in self.leaves}
        common_rows(dists)
        return dists

    def _stored(self, td: TensorDictBase) -> TensorDictBase:
        return td
