"""A backbone, a projection and a head as one actor."""

from __future__ import annotations

import functools
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModuleBase,
)
from tensordict.nn.probabilistic import interaction_type
from torch.distributions import Distribution

from tdheads.heads.base import Head
from tdheads.keys import NestedKey, as_key
from tdheads.running import dispatched, is_watched, parts_of, run_parts


class Actor(ProbabilisticTensorDictSequential):
    """A network and a head in sequence, without what tensordict's sequence costs at each call."""

    @functools.partial(dispatched, auto_batch_size=False)
    def forward(
        self,
        tensordict: TensorDictBase,
        tensordict_out: TensorDictBase | None = None,
        **kwargs: Any,
    ) -> TensorDictBase:
        """Run the network, then draw the action and score it."""
        changed = self._select_before_return or self.return_composite or self.inplace is not None
        if tensordict_out is not None or kwargs or changed or is_watched():
            return super().forward(tensordict, tensordict_out, **kwargs)
        *networks, last = parts_of(self)
        td = self._run(tensordict, networks)
        return last(td) if self._requires_sample else last(td, _requires_sample=False)

    def get_dist_params(
        self,
        tensordict: TensorDictBase,
        tensordict_out: TensorDictBase | None = None,
        **kwargs: Any,
    ) -> TensorDictBase:
        """Run the network, which writes the parameters of the distribution."""
        if tensordict_out is not None or kwargs or is_watched():
            return super().get_dist_params(tensordict, tensordict_out, **kwargs)
        *networks, _ = parts_of(self)
        return self._run(tensordict, networks)

    def _run(self, td: TensorDictBase, networks: list[Any]) -> TensorDictBase:
        # where the caller does not say how to draw, tensordict tells the parts that do
        if interaction_type() is None:
            return super().get_dist_params(td)
        for network in networks:
            td = run_parts(network, td)
        return td

    def build_dist_from_params(self, tensordict: TensorDictBase) -> Distribution:
        """Build the distribution from parameters that are there."""
        *_, last = parts_of(self)
        if isinstance(last, Head):
            return last.get_dist(tensordict)
        return super().build_dist_from_params(tensordict)


def make_actor(
    backbone: TensorDictModuleBase,
    head: Head,
    in_key: NestedKey = "hidden",
    num_features: int = 64,
    *,
    gain: float = 0.01,
) -> ProbabilisticTensorDictSequential:
    """Return the actor ``backbone -> head.projection -> head``.

    It runs wherever TorchRL takes a ``ProbabilisticActor``: collectors, losses, exploration types.

    Args:
        backbone: a module that writes ``in_key``, features ``[*B, num_features]``.
        head: what draws the action.
        in_key: key of the features.
        num_features: width of the features.
        gain: of the projection's orthogonal initialisation.

    Raises:
        TypeError: for a backbone that is no ``TensorDictModule``, and for no head.
        ValueError: for a backbone that does not write ``in_key``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead
        >>> net = TensorDictModule(torch.nn.Linear(4, 64), ["observation"], ["hidden"])
        >>> actor = make_actor(net, CategoricalHead("action", n=3, mask=True))
        >>> actor.in_keys
        ['observation', 'action_mask']
    """
    in_key = as_key(in_key, "in_key")
    if not isinstance(backbone, TensorDictModuleBase):
        raise TypeError(
            f"backbone: expected a TensorDictModule, got a {type(backbone).__name__}; wrap it:"
            f" TensorDictModule(net, in_keys=['observation'], out_keys=[{in_key!r}])"
        )
    if not isinstance(head, Head):
        raise TypeError(
            f"head: expected a head, got a {type(head).__name__}; build one, e.g. with make_head"
        )
    if in_key not in backbone.out_keys:
        raise ValueError(
            f"{in_key!r}: expected the backbone to write the features here, got out_keys="
            f"{list(backbone.out_keys)}; name its output with in_key"
        )
    layer = head.projection(num_features, in_key, gain)
    return Actor(backbone, layer, head)
