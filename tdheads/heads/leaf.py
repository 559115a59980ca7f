"""A head with one leaf, and what it is to other leaves as their parent."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.arguments import check_class, check_flag
from tdheads.checks import require, require_tensor, shape_error, show
from tdheads.distributions.draw import draw
from tdheads.heads.base import Acted, Head
from tdheads.heads.embedding import FlatLinear
from tdheads.heads.parents import Dependence, check_distinct, check_parameters
from tdheads.keys import MASK, Names, NestedKey, as_key, suffixed


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
    takes_mask_given = True

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
        action_key = as_key(action_key, "action_key")
        check_flag("validate", validate)
        check_class("dtype", dtype, torch.dtype, "a torch.dtype")
        if not (mask is None or mask is False or self.takes_mask):
            raise ValueError(
                f"{show(action_key)}: a {type(self).__name__} takes no mask, got {mask!r}"
            )
        given = {name: key for name, key in (param_keys or {}).items() if key is not None}
        keys = {
            name: as_key(given.get(name, suffixed(action_key, "_" + name)), name)
            for name in param_shapes
        }
        mask_key = _mask_key(mask, action_key)
        in_keys = [*keys.values(), *([] if mask_key is None else [mask_key])]
        check_distinct(action_key, in_keys)
        super().__init__(in_keys, [action_key], **head)
        self.action_key = action_key
        self.mask_key = mask_key
        self.param_shapes = {name: torch.Size(shape) for name, shape in param_shapes.items()}
        self.param_keys = keys
        self.dtype = dtype
        self.validate = validate
        self.dependence = Dependence.of(action_key, when, mask_given, after, enumerate_parents)
        self.dependent = bool(self.dependence.parents)
        check_parameters(parameters, self.dependence.after, self.param_keys)
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
        """Build the distribution, batch shape ``[*B]``; called with ``mask=`` and the params.

        Of a distribution of your own are needed ``batch_shape``, ``event_shape``, ``support``,
        ``sample``, ``log_prob`` with one number per row, ``mode`` or ``deterministic_sample``, and
        ``closed = True``. Without an ``entropy`` (do not define one that raises) a loss samples
        it, without a ``register_kl`` the KL; ``empty`` ``[*B]`` marks rows with nothing to choose.
        """

    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Build the distribution of the action; a missing parameter or mask is an error."""
        if self.dependent:
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
        return require_tensor(td, self.mask_key, todo)

    def read_param(self, td: TensorDictBase, name: str) -> Tensor:
        """Read a parameter and check its shape."""
        key, shape = self.param_keys[name], self.param_shapes[name]
        todo = "append head.projection(...) to the network, or name the key"
        value = require_tensor(td, key, todo)
        if value.shape[value.ndim - len(shape) :] != shape:
            todo = f"the network has to write the {name} of {self.action_key!r}"
            raise shape_error(key, f"[..., {str(list(shape))[1:-1]}]", value, todo)
        return value

    def write(self, action: Tensor) -> Tensor:
        """Return the action in the dtype in which it is written."""
        return action if self.dtype in (None, action.dtype) else action.to(self.dtype)

    def act(self, td: TensorDictBase, how: InteractionType | None) -> Acted:
        """Draw the action, or take the stored one."""
        dist = self.get_dist(td)
        action = self._stored(td) if how is None else self.write(draw(dist, how))
        own: Mapping[NestedKey, Tensor] = {}
        if self.own_keys:
            own = self.own_params({name: td.get(key) for name, key in self.param_keys.items()})
        return Acted({self.action_key: dist}, {self.action_key: action}, own)

    # ---- parameters of the head's own, and the distribution at collection

    @property
    def own_keys(self) -> dict[str, NestedKey]:
        """Name -> key of parameters that the head holds itself, and writes when it acts."""
        return {}

    def held_params(self) -> dict[str, Tensor]:
        """Return the parameters of ``own_keys`` by name, as the head holds them: for all rows."""
        return {}

    def own_params(self, params: Mapping[str, Tensor]) -> dict[NestedKey, Tensor]:
        """Return the parameters of ``own_keys`` as they are written, given the others."""
        return {}

    @property
    def out_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` writes."""
        return [*self._acted_keys(), *self.own_keys.values()]

    def stored_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Build the distribution at collection from the stored parameters alone."""
        params = {name: self.read_param(tensordict, name) for name in self.param_keys}
        mask = None if self.mask_key is None else self.read_mask(tensordict)
        return self.distribution(mask=mask, **params, **self.read_own(tensordict))

    def read_own(self, td: TensorDictBase) -> dict[str, Tensor]:
        """Read the stored parameters of ``own_keys``."""
        todo = "keep what the actor wrote at collection"
        return {name: require(td, key, todo) for name, key in self.own_keys.items()}

    # ---- as a parent of other leaves

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one action, without batch dims."""
        return torch.Size()

    @property
    def num_choices(self) -> int | None:
        """Number of choices, if the action is one choice; ``when`` and ``mask_given`` need it."""
        return None

    def raw_choice(self, action: Tensor) -> Tensor:
        """Return the choice ``[*B]`` int64 that an action is, if it is one."""
        return action.long()

    def choice(self, action: Tensor) -> Tensor:
        """Return the choice ``[*B]`` int64 that an action is; what is none becomes the nearest.

        An irrelevant leaf is written as 0, which need not be one of its choices.
        """
        index = self.raw_choice(action)
        return index if self.num_choices is None else index.clamp(0, self.num_choices - 1)

    @property
    def has_zero(self) -> bool:
        """Whether 0, as an irrelevant leaf is written, is known to be among ``all_actions``."""
        return True

    def all_actions(self) -> Tensor | None:
        """Return every action as it is written, ``[n, *event]``; ``None`` if not finitely many."""
        return None

    def embedding(self, width: int) -> nn.Module:
        """Return a module that embeds a written action, ``[*B, *event]`` -> ``[*B, width]``."""
        return FlatLinear(self.event_shape, width)


def _mask_key(mask: NestedKey | bool | None, action_key: NestedKey) -> NestedKey | None:
    if mask is None or mask is False:
        return None
    return suffixed(action_key, MASK) if mask is True else as_key(mask, "mask")
