"""What every head does with a tensordict: read, draw, score, write."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
)
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor
from torch.distributions import Distribution

from tdheads.arguments import check_class, check_flag, check_keywords
from tdheads.checks import check_options, eager, require
from tdheads.distributions.draw import score_draw
from tdheads.entries import write
from tdheads.heads.projection import check_features, make_projection, make_split
from tdheads.heads.seeding import drawing_from
from tdheads.keys import LOG_PROB, NestedKey, as_key, suffixed
from tdheads.looks import Looks
from tdheads.reduce import add
from tdheads.running import dispatched

if TYPE_CHECKING:
    from typing_extensions import Self

    from tdheads.heads.leaf import LeafHead


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

    #: whether a leaf depends on another one
    dependent = False
    #: what to do instead of a keyword that other modules take
    keyword_hints = {
        **dict.fromkeys(("in_keys", "out_keys"), "a head's keys follow from its action_key"),
        **dict.fromkeys(
            ("distribution_class", "distribution_kwargs", "spec"), "a head has its distribution"
        ),
    }
    #: keywords of a base that a class sets itself
    fixed_keywords: tuple[str, ...] = ("param_keys", "param_shapes")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse unknown keywords before anything else."""
        check_keywords(cls, kwargs, subclass_takes_more=True)
        return super().__new__(cls)

    def __init__(
        self,
        in_keys: list[NestedKey],
        action_keys: list[NestedKey],
        *,
        return_log_prob: bool = True,
        default_interaction_type: InteractionType = InteractionType.DETERMINISTIC,
        generator: torch.Generator | None = None,
        **unknown: Any,
    ) -> None:
        check_keywords(type(self), unknown)
        check_flag("return_log_prob", return_log_prob)
        check_class("generator", generator, torch.Generator, "a torch.Generator")
        if not isinstance(default_interaction_type, InteractionType):
            modes = [mode.value for mode in InteractionType]
            check_options("default_interaction_type", default_interaction_type, modes)
        super().__init__(
            in_keys=in_keys,
            out_keys=action_keys,
            return_log_prob=return_log_prob,
            default_interaction_type=default_interaction_type,
        )
        self.generator = generator
        self._log_prob_keys = [suffixed(key, LOG_PROB) for key in self._out_keys]

    @property
    @abc.abstractmethod
    def leaves(self) -> tuple[LeafHead, ...]:
        """The leaves, in order."""

    @property
    def log_prob_keys(self) -> list[NestedKey]:
        """Where the log-probs are written, one key per leaf."""
        return self._log_prob_keys.copy()

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
        return self._acted_keys()

    # subclasses add to these methods, as torch.compile cannot read a property of ``super()``

    def _acted_keys(self) -> list[NestedKey]:
        return [*self._out_keys, *(self.log_prob_keys if self.return_log_prob else ())]

    def _param_keys(self) -> list[NestedKey]:
        leaves = self.leaves
        keys = [key for leaf in leaves for key in (*leaf.param_keys.values(), leaf.mask_key) if key]
        keys += [key for leaf in leaves for key in leaf.own_keys.values()]
        return list(dict.fromkeys(keys))

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
        check_features(num_features, gain)
        return make_projection(self.projected, num_features, as_key(in_key, "in_key"), gain)

    def split_params(self, in_key: NestedKey = "params") -> TensorDictModule:
        """Return a module that splits one raw tensor ``[*B, num_params]`` into the parameter keys.

        For networks that write that tensor themselves, such as TorchRL's ``MultiAgentMLP``.
        """
        return make_split(self.projected, as_key(in_key, "in_key"))

    @abc.abstractmethod
    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Build the distribution of the action from the parameters and masks in the tensordict."""

    @property
    def stored_keys(self) -> list[NestedKey]:
        """Every key that ``stored_dist`` reads."""
        return self._param_keys()

    @abc.abstractmethod
    def stored_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Build the distribution at collection from the stored parameters and masks alone.

        No parameter of the head or the network enters: it does not change when they are updated.
        """

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

    @functools.partial(dispatched, auto_batch_size=False)
    def forward(
        self,
        tensordict: TensorDictBase,
        tensordict_out: TensorDictBase | None = None,
        _requires_sample: bool = True,
    ) -> TensorDictBase:
        """Draw every action by the current exploration type and write it with its log-prob."""
        out = tensordict if tensordict_out is None else tensordict_out
        how = None
        if _requires_sample:
            how = interaction_type() or self.default_interaction_type
        if self.return_log_prob and not self.dependent and eager():
            with Looks() as looks:
                acted = self._draw(tensordict, how)
                log_probs = self._log_probs(acted, how)
            if looks.pending:
                looks.settle(add(log_probs))
        else:
            acted = self._draw(tensordict, how)
            log_probs = self._log_probs(acted, how) if self.return_log_prob else []
        entries = list(acted.actions.items())
        if log_probs:
            scored = zip(self._log_prob_keys, log_probs, strict=True)
            entries = [entry for pair in zip(entries, scored, strict=True) for entry in pair]
        write(out, [*entries, *acted.params.items()])
        return out

    def _draw(self, td: TensorDictBase, how: InteractionType | None) -> Acted:
        if self.generator is None:
            return self.act(td, how)
        with drawing_from(self.generator):
            return self.act(td, how)

    def _log_probs(self, acted: Acted, how: InteractionType | None) -> list[Tensor]:
        dists, actions, _ = acted
        if how is None:  # the stored actions come from elsewhere
            return [dists[key].log_prob(actions[key]) for key in self._out_keys]
        return [score_draw(dists[key], actions[key]) for key in self._out_keys]

    def __repr__(self) -> str:
        """Show what is read and written."""
        return f"{type(self).__name__}(in_keys={self.in_keys}, out_keys={self.out_keys})"
