"""Several heads as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import InteractionType
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.distributions import ActionDistribution
from tdheads.heads.base import Head, LeafHead
from tdheads.keys import NestedKey


class CompositeHead(Head):
    r"""Several action leaves, in order, as one head.

    .. math:: \log p(a) = \sum_l \log p_l(a_l)

    Reads what its heads read, writes every leaf ``K`` and ``K_log_prob`` ``[*B]``. ``get_dist``
    returns an :class:`~tdheads.distributions.ActionDistribution`.

    Args:
        heads: the heads; a composite among them adds its leaves.
        head: ``return_log_prob``, ``default_interaction_type``, as for TorchRL's modules.

    Raises:
        ValueError: for no head, or two leaves with the same key.
        KeyError, ValueError: what its heads raise.

    Source: tensordict's ``CompositeDistribution``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdheads import CategoricalHead, NormalHead
        >>> head = CompositeHead(CategoricalHead("kind", n=3), NormalHead("where", shape=(2,)))
        >>> layer = head.projection(8)
        >>> sorted(layer(TensorDict({"hidden": torch.randn(4, 8)}, [4])).keys())
        ['hidden', 'kind_logits', 'where_loc', 'where_scale']
        >>> head.log_prob_keys
        ['kind_log_prob', 'where_log_prob']
    """

    def __init__(self, *heads: Head, **head: Any) -> None:
        leaves = [leaf for part in heads for leaf in part.leaves]
        keys = [leaf.action_key for leaf in leaves]
        if not leaves or len(set(keys)) != len(keys):
            raise ValueError(
                f"CompositeHead: expected at least one leaf, each key once, got {keys}"
            )
        in_keys = dict.fromkeys(key for leaf in leaves for key in leaf.in_keys)
        super().__init__(list(in_keys), keys, **head)
        self.heads = nn.ModuleList(leaves)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the leaves before the composite.

        tensordict's ``ProbabilisticTensorDictSequential`` takes the *last* probabilistic module it
        finds in ``modules()`` for the one that makes the distribution.
        """
        itself, *parts = super().named_modules(*args, **kwargs)
        yield from (*parts, itself)

    @property
    def leaves(self) -> tuple[LeafHead, ...]:
        """The leaves, in order."""
        return tuple(self.heads)  # type: ignore[arg-type]  # ModuleList forgets the class

    def get_dist(self, tensordict: TensorDictBase) -> ActionDistribution:
        """Build the joint distribution of all leaves."""
        dists = {leaf.action_key: leaf.get_dist(tensordict) for leaf in self.leaves}
        return ActionDistribution(dists, tensordict.batch_size)

    def draw(self, dist: Distribution, how: InteractionType) -> dict[NestedKey, Tensor]:
        """Draw the leaves in order, each in the dtype in which it is written."""
        assert isinstance(dist, ActionDistribution)
        actions: dict[NestedKey, Tensor] = {}
        for leaf in self.leaves:
            actions.update(leaf.draw(dist[leaf.action_key], how))
        return actions

    def score(
        self, dist: Distribution, actions: Mapping[NestedKey, Tensor], td: TensorDictBase
    ) -> dict[NestedKey, Tensor]:
        """Return the log-prob of every written action."""
        assert isinstance(dist, ActionDistribution)
        return {key: dist[key].log_prob(action) for key, action in actions.items()}

    def _stored(self, td: TensorDictBase) -> TensorDictBase:
        return td
