"""What every head does with a tensordict: read, draw, score, write."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictModuleBase,
    dispatch,
)
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.checks import require, shape_error, show
from tdheads.distributions.draw import draw
from tdheads.heads.parents import Dependence
from tdheads.heads.projection import make_projection, make_split
from tdheads.heads.seeding import drawing_from
from tdheads.keys import LOG_PROB, MASK, Names, NestedKey, as_key, suffixed


class Acted(NamedTuple):
    """What a head did: distribution and written action of each leaf, and further entries."""

    dists: Mapping[NestedKey, Distribution]
    actions: Mapping[NestedKey, Tensor]
    params: Mapping[NestedKey, Tensor] = {}


class Head(ProbabilisticTensorDictModule):
    """Base of all heads: reads parameters and masks, writes actions and one log-prob per leaf.

    A head is one or more *leaves*. Its keys follow from the leaf key ``K`` alone (see
    :mod:`tdheads.keys`) and do not depend on tensordict's ``set_composite_lp_aggregate``.
    """

    def __init__(
        self,
        in_keys: list[NestedKey],
        action_keys: list[NestedKey],
        *,
        return_log_prob: bool = True,
        default_interaction_type: InteractionType = InteractionType.DETERMINISTIC,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            in_keys=in_keys,
            out_keys=action_keys,
            return_log_prob=return_log_prob,
            default_interaction_type=default_interaction_type,
        )
        self.generator = generator

    @property
    @abc.abstractmethod
    def leaves(self) -> tuple[LeafHead, ...]:
        """The leaves, in order."""

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """Where the log-probs are written, one key per leaf."""
        return [suffixed(key, LOG_PROB) for key in self._out_keys]

    @property
    def log_prob_key(self) -> NestedKey:
        """Where the log-prob is written, if there is one leaf."""
        if len(self._out_keys) > 1:
            raise AttributeError(
                f"this head has several leaves: read log_prob_keys={self.log_prob_keys}"
            )
        return self.log_prob_keys[0]

    @property
    def out_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` writes."""
        return [*self._out_keys, *(self.log_prob_keys if self.return_log_prob else ())]

    @property
    def projected(self) -> tuple[LeafHead, ...]:
        """The leaves whose parameters a network writes before the head runs."""
        return self.leaves

    @property
    def num_params(self) -> int:
        """Width of the raw tensor that holds the parameters that a network has to write."""
        return sum(shape.numel() for leaf in self.projected for shape in leaf.param_shapes.values())

    def projection(
        self, num_features: int, in_key: NestedKey = "hidden", gain: float = 0.01
    ) -> TensorDictModule:
        """Return one linear layer that writes every parameter key from the features at ``in_key``.

        Weights are orthogonal with ``gain``, biases zero: the first policy is close to uniform.

        Shapes: ``in_key`` ``[*B, num_features]`` -> each parameter ``[*B, *shape]``.

        Example:
            >>> from tensordict import TensorDict
            >>> from tdheads import CategoricalHead
            >>> layer = CategoricalHead("action", n=3).projection(8)
            >>> layer(TensorDict({"hidden": torch.randn(4, 8)}, [4]))["action_logits"].shape
            torch.Size([4, 3])
        """
        return make_projection(self.projected, num_features, as_key(in_key), gain)

    def split_params(self, in_key: NestedKey = "params") -> TensorDictModule:
        """Return a module that splits one raw tensor ``[*B, num_params]`` into the parameter keys.

        For networks that write that tensor themselves, such as TorchRL's ``MultiAgentMLP``.
        """
        return make_split(self.projected, as_key(in_key))

    @abc.abstractmethod
    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Build the distribution of the action from the parameters and masks in the tensordict."""

    def build_dist_from_params(self, tensordict: TensorDictBase) -> Distribution:
        """Build the same distribution: a head runs no network."""
        return self.get_dist(tensordict)

    @abc.abstractmethod
    def act(self, td: TensorDictBase, how: InteractionType | None) -> Acted:
        """Draw the actions by an exploration type, or take the stored ones, and score them."""

    def log_prob(
        self, tensordict: TensorDictBase, *, dist: Distribution | None = None
    ) -> Tensor | TensorDictBase:
        """Log-prob of the stored actions: a tensor for one leaf, else ``K_log_prob`` entries."""
        dist = self.get_dist(tensordict) if dist is None else dist
        return dist.log_prob(self._stored(tensordict))

    def _stored(self, td: TensorDictBase) -> Any:
        return require(td, self._out_keys[0], "give the action to score")

    @dispatch(auto_batch_size=False)
    def forward(
        self,
        tensordict: TensorDictBase,
        tensordict_out: TensorDictBase | None = None,
        _requires_sample: bool = True,
    ) -> TensorDictBase:
        """Draw every action by the current exploration type and write it with its log-prob."""
        out = tensordict if tensordict_out is None else tensordict_out
        how = interaction_type() or self.default_interaction_type
        with drawing_from(self.generator):
            dists, actions, params = self.act(tensordict, how if _requires_sample else None)
        for key, action in actions.items():
            out.set(key, action)
            if self.return_log_prob:
                out.set(suffixed(key, LOG_PROB), dists[key].log_prob(action))
        for key, value in params.items():
            out.set(key, value)
        return out

    def __repr__(self) -> str:
        """Show what is read and written."""
        return f"{type(self).__name__}(in_keys={self.in_keys}, out_keys={self.out_keys})"


class LeafHead(Head):
    """Base of heads with one leaf: a user's own head subclasses it and writes ``distribution``.

    Args:
        action_key: the leaf key ``K``.
        param_shapes: name -> shape of each parameter without batch dims, e.g. ``{"logits": [n]}``.
            The names are the keywords of ``distribution``.
        param_keys: name -> key of a parameter, where it is not ``K_<name>``.
        mask: ``None`` for none, ``True`` for the key ``K_mask``, or a key.
        dtype: dtype of the written action; ``None`` keeps that of the distribution.
        validate: whether to look at values, which costs host synchronisations.
        when, mask_given, after, enumerate_parents: how the leaf depends on earlier ones; see
            :class:`~tdheads.CompositeHead`.
        parameters: module that writes the parameters of an ``after`` leaf, instead of the default.
        head: ``return_log_prob``, ``default_interaction_type``, ``generator``, as for TorchRL's
            modules.
    """

    parameters_module: TensorDictModuleBase | None
    takes_mask = True

    def __init__(
        self,
        action_key: NestedKey,
        param_shapes: Mapping[str, Any],
        *,
        param_keys: Mapping[str, NestedKey | None] | None = None,
        mask: NestedKey | bool | None = None,
        dtype: torch.dtype | None = None,
        validate: bool = True,
        when: Mapping[NestedKey, int | Sequence[int]] | None = None,
        mask_given: NestedKey | None = None,
        after: Sequence[NestedKey] = (),
        enumerate_parents: bool = False,
        parameters: TensorDictModuleBase | None = None,
        **head: Any,
    ) -> None:
        action_key = as_key(action_key)
        if mask not in (None, False) and not self.takes_mask:
            raise ValueError(
                f"{show(action_key)}: a {type(self).__name__} takes no mask, got {mask!r}"
            )
        given = {name: key for name, key in (param_keys or {}).items() if key is not None}
        keys = {name: given.get(name, suffixed(action_key, "_" + name)) for name in param_shapes}
        mask_key = _mask_key(mask, action_key)
        super().__init__(
            [as_key(key) for key in keys.values()] + ([] if mask_key is None else [mask_key]),
            [action_key],
            **head,
        )
        self.action_key = action_key
        self.mask_key = mask_key
        self.param_shapes = {name: torch.Size(shape) for name, shape in param_shapes.items()}
        self.param_keys = {name: as_key(key) for name, key in keys.items()}
        self.dtype = dtype
        self.validate = validate
        self.dependence = Dependence.of(action_key, when, mask_given, after, enumerate_parents)
        # the composite registers it, once
        self.__dict__["parameters_module"] = parameters
        first = next(iter(self.param_keys.values()), suffixed(action_key, ""))
        self.names = Names(action_key, mask_key or suffixed(action_key, MASK), first)

    @property
    def leaves(self) -> tuple[LeafHead, ...]:
        """The head itself."""
        return (self,)

    @property
    def mask_shapes(self) -> tuple[torch.Size, ...]:
        """Shapes, without batch dims, that a mask of this leaf may have; none if it takes none."""
        return ()

    @property
    def mask_fill(self) -> float | Tensor:
        """What makes every row of the mask legal."""
        return 1

    @abc.abstractmethod
    def distribution(self, *args: Any, **kwargs: Any) -> Distribution:
        """Build the distribution, batch shape ``[*B]``; called with ``mask=`` and the params."""

    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Build the distribution of the action; a missing parameter or mask is an error."""
        if self.dependence.parents:
            raise ValueError(
                f"{show(self.action_key)}: it depends on {list(self.dependence.parents)}; put them"
                " into one CompositeHead, parents first"
            )
        params = {name: self.read_param(tensordict, name) for name in self.param_keys}
        mask = None if self.mask_key is None else self.read_mask(tensordict)
        return self.distribution(mask=mask, **params)

    def read_mask(self, td: TensorDictBase) -> Tensor:
        """Read the mask; a missing one is an error."""
        assert self.mask_key is not None
        todo = "the head was built with a mask and never falls back to none: provide it"
        return require(td, self.mask_key, todo)

    def read_param(self, td: TensorDictBase, name: str) -> Tensor:
        """Read a parameter and check its shape."""
        key, shape = self.param_keys[name], self.param_shapes[name]
        value = require(td, key, "append head.projection(...) to the network, or name the key")
        if value.shape[value.ndim - len(shape) :] != shape:
            todo = f"the network has to write the {name} of {self.action_key!r}"
            raise shape_error(key, f"[..., {str(list(shape))[1:-1]}]", value, todo)
        return value

    def write(self, action: Tensor) -> Tensor:
        """Return the action in the dtype in which it is written."""
        return action if self.dtype is None else action.to(self.dtype)

    def act(self, td: TensorDictBase, how: InteractionType | None) -> Acted:
        """Draw the action, or take the stored one."""
        dist = self.get_dist(td)
        action = self._stored(td) if how is None else self.write(draw(dist, how))
        return Acted({self.action_key: dist}, {self.action_key: action})

    # ---- as a parent of other leaves

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one action, without batch dims."""
        return torch.Size()

    @property
    def num_choices(self) -> int | None:
        """Number of choices, if the action is one choice; ``when`` and ``mask_given`` need it."""
        return None

    def choice(self, action: Tensor) -> Tensor:
        """Return the choice ``[*B]`` int64 that an action is."""
        return action.long()

    def all_actions(self) -> Tensor | None:
        """Return every action as it is written, ``[n, *event]``; ``None`` if not finitely many."""
        return None

    def embedding(self, width: int) -> nn.Module:
        """Return a module that embeds a written action, ``[*B, *event]`` -> ``[*B, width]``."""
        return FlatLinear(self.event_shape, width)


class FlatLinear(nn.Module):
    """Linear embedding of an action that is a vector of numbers.

    Example:
        >>> FlatLinear(torch.Size([2, 3]), 4)(torch.zeros(5, 2, 3, dtype=torch.int64)).shape
        torch.Size([5, 4])
    """

    def __init__(self, event_shape: torch.Size, width: int) -> None:
        super().__init__()
        self.event_ndim = len(event_shape)
        self.linear = nn.Linear(event_shape.numel(), width, bias=False)

    def forward(self, action: Tensor) -> Tensor:
        """Embed."""
        flat = action.flatten(-self.event_ndim) if self.event_ndim else action.unsqueeze(-1)
        return self.linear(flat.to(self.linear.weight.dtype))


def _mask_key(mask: NestedKey | bool | None, action_key: NestedKey) -> NestedKey | None:
    if mask is None or mask is False:
        return None
    return suffixed(action_key, MASK) if mask is True else as_key(mask)
