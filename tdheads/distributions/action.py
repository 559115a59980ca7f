"""The joint distribution of all leaves of an action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from tensordict.nn import CompositeDistribution, InteractionType
from torch import Tensor
from torch.distributions import Distribution, kl_divergence, register_kl
from torch.distributions.constraints import Constraint

from tdheads.checks import require
from tdheads.distributions.draw import draw
from tdheads.distributions.movable import Movable
from tdheads.distributions.supports import Leaves
from tdheads.keys import ENTROPY, KL, LOG_PROB, NestedKey, as_key, suffixed
from tdheads.reduce import sum_leaves

Measure = Callable[..., Tensor]


def check_leaves(leaves: Any) -> None:
    """Refuse what is no mapping leaf key -> distribution.

    Example:
        >>> check_leaves({"action": torch.distributions.Normal(0.0, 1.0)})
    """
    named = isinstance(leaves, (dict, Mapping))
    if not named or not all(isinstance(dist, Distribution) for dist in leaves.values()):
        raise TypeError(
            f"ActionDistribution: expected a mapping leaf key -> distribution, got {leaves!r}"
        )
    if not leaves:
        raise ValueError("ActionDistribution: expected at least one leaf, got none")


def check_batch_size(batch_size: Any) -> None:
    """Refuse a batch size that is no tuple of integers.

    Example:
        >>> check_batch_size([4])
    """
    listed = isinstance(batch_size, (tuple, list))
    if not listed or not all(not isinstance(n, (str, float)) for n in batch_size):
        raise TypeError(f"batch_size: expected a tuple of integers, got {batch_size!r}")


def common_rows(leaves: Mapping[NestedKey, Distribution]) -> torch.Size:
    """Return the batch shape of all leaves.

    Raises:
        ValueError: for leaves with different ones.

    Example:
        >>> common_rows({"action": torch.distributions.Normal(torch.zeros(3), 1.0)})
        torch.Size([3])
    """
    first, *others = [dist.batch_shape for dist in leaves.values()]
    if all(shape == first for shape in others):
        return first
    named = {key: list(dist.batch_shape) for key, dist in leaves.items()}
    raise ValueError(
        f"the leaves of one action need one log-prob per row, got batch shapes {named};"
        " give every leaf the same batch dims, or use one head and one loss per group"
    )


class ActionDistribution(Movable, CompositeDistribution):
    r"""Joint distribution of independent action leaves: a mapping ``leaf key -> distribution``.

    .. math:: \log p(a) = \sum_l \log p_l(a_l)

    Samples are tensordicts of actions; ``log_prob``, ``entropy`` and ``kl`` return tensordicts with
    one entry ``K_log_prob``, ``K_entropy``, ``K_kl`` per leaf ``K``, each of shape ``[*B]``,
    whatever tensordict's ``set_composite_lp_aggregate`` says.

    Args:
        leaves: leaf key -> distribution, in order.
        batch_size: batch size of the tensordicts that are returned.

    Raises:
        KeyError: by ``log_prob`` for a tensordict that lacks a leaf.

    Source: tensordict's :class:`~tensordict.nn.CompositeDistribution`, which it subclasses.

    Example:
        >>> from tdheads.distributions import MaskedCategorical
        >>> dist = ActionDistribution({"kind": MaskedCategorical(torch.zeros(4, 3))}, [4])
        >>> dist.log_prob(dist.mode)["kind_log_prob"].exp()
        tensor([0.3333, 0.3333, 0.3333, 0.3333])
    """

    def __init__(
        self,
        leaves: Mapping[NestedKey, Distribution],
        batch_size: Any = torch.Size(),
    ) -> None:
        check_leaves(leaves)
        self.dists = {
            key if type(key) is str else as_key(key, "ActionDistribution"): dist
            for key, dist in leaves.items()
        }
        if len(self.dists) != len(leaves):
            raise ValueError(f"ActionDistribution: expected each leaf once, got {list(leaves)}")
        if not isinstance(batch_size, torch.Size):
            check_batch_size(batch_size)
        #: batch shape ``[*B]`` of every leaf, which may have more dims than the tensordict
        self.row_shape = common_rows(self.dists)
        self.log_prob_key = None
        self.entropy_key = None
        Distribution.__init__(self, torch.Size(batch_size), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ActionDistribution:
        """Return a view of the distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        extra = len(self.batch_shape)
        leaves = {k: d.expand(batch_shape + d.batch_shape[extra:]) for k, d in self.dists.items()}
        return type(self)(leaves, batch_shape)

    @property
    def validates(self) -> bool:
        """Whether a leaf looks at values (a host synchronisation)."""
        return any(getattr(dist, "validates", True) for dist in self.dists.values())

    @property
    def empty(self) -> Tensor | None:
        """Rows in which no leaf has anything to choose, ``[*B]``; ``None`` if there can be none."""
        rows = None
        for dist in self.dists.values():
            leaf_rows = getattr(dist, "empty", None)
            if leaf_rows is None:
                return None
            rows = leaf_rows if rows is None else rows & leaf_rows
        return rows

    @property
    def support(self) -> Constraint:
        """Tensordicts of which every leaf is in its support."""
        leaves: dict[NestedKey, Any] = {key: dist.support for key, dist in self.dists.items()}
        return Leaves(leaves)

    @property
    def has_enumerate_support(self) -> bool:
        """Whether there are finitely many actions."""
        return all(dist.has_enumerate_support for dist in self.dists.values())

    def enumerate_support(self, expand: bool = True) -> TensorDictBase:
        """All joint actions, legal or not, as a tensordict of batch size ``[n, *B]``.

        With ``expand=False`` its batch dims have size 1.
        """
        each = {key: dist.enumerate_support(expand=False) for key, dist in self.dists.items()}
        places = torch.cartesian_prod(*(torch.arange(len(v)) for v in each.values()))
        columns = places.view(-1, len(each)).unbind(-1)
        actions = {}
        for (key, values), column in zip(each.items(), columns, strict=True):
            values = values.reshape(len(values), *self.dists[key].event_shape)
            actions[key] = values[column.to(values.device)]
        return self._spread(actions, expand)

    def _spread(self, actions: Mapping[NestedKey, Tensor], expand: bool) -> TensorDictBase:
        """Give every row the joint actions, ``[n, *event]`` each."""
        rows = torch.Size(self.row_shape if expand else [1] * len(self.row_shape))
        out = {}
        for key, action in actions.items():
            event = action.shape[1:]
            wide = action.view((-1, *[1] * len(rows), *event))
            out[key] = wide.expand(-1, *rows, *event)
        size = next(iter(out.values())).shape[: 1 + len(self.batch_shape)]
        return TensorDict(out, size)

    def draw(self, how: InteractionType) -> TensorDictBase:
        """Draw every leaf by the rule of an exploration type."""
        return self._each("", lambda _, dist: draw(dist, how))

    def sample(self, sample_shape: Any = None) -> TensorDictBase:
        """Draw every leaf without a gradient."""
        shape = torch.Size(sample_shape or ())
        return self._each("", lambda _, dist: dist.sample(shape), shape)

    def rsample(self, sample_shape: Any = None) -> TensorDictBase:
        """Draw every leaf, with a gradient where the leaf offers one."""
        shape = torch.Size(sample_shape or ())

        def rsample(_: NestedKey, dist: Distribution) -> Tensor:
            return dist.rsample(shape) if dist.has_rsample else dist.sample(shape)

        return self._each("", rsample, shape)

    @property
    def mode(self) -> TensorDictBase:
        """Mode of every leaf."""
        return self.draw(InteractionType.MODE)

    @property
    def mean(self) -> TensorDictBase:
        """Mean of every leaf; a discrete leaf has none and gives its mode."""
        return self.draw(InteractionType.MEAN)

    @property
    def deterministic_sample(self) -> TensorDictBase:
        """What acting without exploration takes, for every leaf."""
        return self.draw(InteractionType.DETERMINISTIC)

    def log_prob(self, sample: TensorDictBase) -> TensorDictBase:
        """Log-prob of every leaf's action: ``K_log_prob`` of shape ``[*S, *B]``."""
        if not is_tensor_collection(sample):
            raise TypeError(
                f"log_prob: expected a tensordict with {list(self.dists)}, got a"
                f" {type(sample).__name__}"
            )

        def log_prob(key: NestedKey, dist: Distribution) -> Tensor:
            return dist.log_prob(require(sample, key, "give an action for every leaf"))

        return self._each(LOG_PROB, log_prob, batch_size=sample.batch_size)

    def entropy(self, *_: Any, **__: Any) -> TensorDictBase:
        """Entropy of every leaf in nats: ``K_entropy`` of shape ``[*B]``."""
        return self._each(ENTROPY, lambda _, dist: dist.entropy())

    def kl(self, other: ActionDistribution, measure: Measure = kl_divergence) -> TensorDictBase:
        """KL from this distribution to ``other``, leaf by leaf: ``K_kl`` of shape ``[*B]``.

        ``measure`` takes two leaves; another one may estimate a KL that has no closed form.
        """
        if not isinstance(other, CompositeDistribution):
            raise TypeError(f"KL: expected an ActionDistribution, got {other!r}")
        if set(other.dists) != set(self.dists):
            raise KeyError(f"KL: expected the leaves {list(self.dists)}, got {list(other.dists)}")
        return self._each(KL, lambda key, dist: measure(dist, other.dists[key]))

    def log_prob_composite(self, sample: TensorDictBase, **_: Any) -> TensorDictBase:
        """The same as :meth:`log_prob`."""
        return self.log_prob(sample)

    def entropy_composite(self, *_: Any, **__: Any) -> TensorDictBase:
        """The same as :meth:`entropy`."""
        return self.entropy()

    def _each(
        self,
        suffix: str,
        fn: Callable[[NestedKey, Distribution], Tensor],
        sample_shape: torch.Size = torch.Size(),
        batch_size: torch.Size | None = None,
    ) -> TensorDictBase:
        out = {suffixed(key, suffix): fn(key, dist) for key, dist in self.dists.items()}
        return TensorDict(
            out, sample_shape + self.batch_shape if batch_size is None else batch_size
        )


@register_kl(ActionDistribution, ActionDistribution)
def _kl_action(p: ActionDistribution, q: ActionDistribution) -> Tensor:
    return sum_leaves(p.kl(q))
