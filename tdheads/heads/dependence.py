"""A leaf head as a conditional distribution, and the parameters of an autoregressive leaf."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.checks import require, shape_error
from tdheads.compat import swapped_in
from tdheads.distributions.movable import Movable
from tdheads.heads.leaf import LeafHead
from tdheads.heads.projection import SplitParams
from tdheads.keys import NestedKey

EMBEDDING_WIDTH = 16
Actions = Mapping[NestedKey, Tensor]


class AfterParents(nn.Module):
    """Default parameter module of an autoregressive leaf.

    Every parent's action is embedded (:meth:`LeafHead.embedding`) and concatenated with the
    features; a hidden layer of the features' width and a linear layer, orthogonal with gain 0.01,
    give the parameters.

    Shapes: features ``[*B, num_features]``, actions as written -> each parameter ``[*B, *shape]``.
    """

    def __init__(self, leaf: LeafHead, parents: Sequence[LeafHead], num_features: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(parent.embedding(EMBEDDING_WIDTH) for parent in parents)
        self.hidden = nn.Linear(num_features + EMBEDDING_WIDTH * len(parents), num_features)
        self.split = SplitParams(list(leaf.param_shapes.values()), leaf.action_key)
        self.out = nn.Linear(num_features, sum(self.split.sizes))
        nn.init.orthogonal_(self.out.weight, 0.01)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor, *actions: Tensor) -> tuple[Tensor, ...]:
        """Read the features and the parents' actions."""
        embedded = [e(a) for e, a in zip(self.embeddings, actions, strict=True)]
        hidden = torch.tanh(self.hidden(torch.cat([features, *embedded], -1)))
        return self.split(self.out(hidden))


def parameter_module(
    leaf: LeafHead, parents: Sequence[LeafHead], in_key: NestedKey, num_features: int
) -> TensorDictModule:
    """Return the default parameter module of an autoregressive leaf as a tensordict module."""
    keys = [in_key, *(parent.action_key for parent in parents)]
    module = AfterParents(leaf, parents, num_features)
    return TensorDictModule(module, in_keys=keys, out_keys=list(leaf.param_keys.values()))


def _weights_of(module: nn.Module) -> TensorDictBase:
    """Return the tensors that a module computes with, wherever ``to_module`` may have put them."""
    found = {}
    for path, part in module.named_modules():
        # a target's parameters are plain attributes, which TensorDict.from_module does not see
        for name, value in {**vars(part), **part._buffers, **part._parameters}.items():
            if isinstance(value, Tensor):
                found[f"{path}.{name}" if path else name] = value
    return TensorDict(found).unflatten_keys(".")


class HeadConditional(Movable):
    """A leaf head and a tensordict as the conditional distribution of the leaf given its parents.

    See :class:`~tdheads.distributions.dependent.Conditional` for what it has to offer.

    Args:
        head: the leaf.
        lenient: the same head with no check on, to be used for combinations that cannot happen.
        parents: the heads of its parents.
        td: parameters, masks and features.
        rows: batch shape ``[*B]`` of the leaf.
        module: parameter module of an autoregressive leaf.
        written: where the parameters of an autoregressive leaf are put when it acts.
        stored: take every parameter from the tensordict, as it was at collection.
    """

    def __init__(
        self,
        head: LeafHead,
        lenient: LeafHead,
        parents: Mapping[NestedKey, LeafHead],
        td: TensorDictBase,
        rows: torch.Size,
        module: TensorDictModuleBase | None = None,
        written: dict[NestedKey, Tensor] | None = None,
        stored: bool = False,
    ) -> None:
        self.head, self.lenient, self.parents = head, lenient, parents
        self.td, self.rows, self.module, self.written = td, rows, module, written
        # a loss runs the head with parameters of its own, or a target's, which have to be the
        # same whenever a log-prob, entropy or KL is asked for; acting is over when it returns
        self.own = {} if stored else head.held_params()
        self.weights = None if module is None or written is not None else _weights_of(module)
        dependence = head.dependence
        self.when = dependence.when
        mask = () if dependence.mask_given is None else (dependence.mask_given,)
        self.reads = tuple(dict.fromkeys((*mask, *dependence.after)))
        self.stored = stored
        # what is stored of an autoregressive leaf holds at the stored actions only
        self.exact = not dependence.after or (dependence.enumerate_parents and not stored)

    def build(
        self, actions: Actions, relevant: Tensor | None = None, lenient: bool = False
    ) -> Distribution:
        """Build the distribution given the parents' actions."""
        head = self.lenient if lenient else self.head
        rows = self.rows if relevant is None else relevant.shape
        for key in self.reads:  # actions of sample shape S bring their dims in front
            shape = actions[key].shape
            shape = shape[: len(shape) - len(self.parents[key].event_shape)]
            rows = shape if len(shape) > len(rows) else rows
        params = self._params(actions, rows)
        mask = self._mask(actions, rows)
        if mask is not None and relevant is not None:
            # what an irrelevant row allows is nobody's business, an empty mask included
            gate = relevant.reshape((*relevant.shape, *[1] * (mask.ndim - len(rows))))
            fill = torch.as_tensor(head.mask_fill, device=mask.device).to(mask.dtype)
            if mask.dtype is torch.bool:  # ONNX runtimes have no where for booleans
                mask = (mask & gate) | (fill & ~gate)
            else:
                mask = torch.where(gate, mask, fill)
        return head.distribution(mask=mask, **params)

    def _params(self, actions: Actions, rows: torch.Size) -> dict[str, Tensor]:
        td = self.td if self.module is None else self._run(self.module, actions, rows)
        params = {name: self.head.read_param(td, name) for name in self.head.param_keys}
        params |= self.own
        shapes = {**self.head.param_shapes, **{name: own.shape for name, own in self.own.items()}}
        if self.stored:
            own = self.head.read_own(td)
            shapes.update({name: value.shape[len(self.rows) :] for name, value in own.items()})
            params |= own
        return {name: value.expand(rows + shapes[name]) for name, value in params.items()}

    def _run(
        self, module: TensorDictModuleBase, actions: Actions, rows: torch.Size
    ) -> TensorDictBase:
        names = [key for key in module.in_keys if key not in self.parents]
        todo = f"the parameters of {self.head.action_key!r} are computed from it"
        inputs = {key: require(self.td, key, todo) for key in names}
        td = TensorDict(inputs, self.td.batch_size)
        lead = rows[: len(rows) - len(self.rows)]
        td = td.expand(*lead, *td.batch_size) if lead else td
        td.update({key: actions[key] for key in self.head.dependence.after})
        if self.weights is None:
            td = module(td)
        else:
            with swapped_in(self.weights, module):
                td = module(td)
        if self.written is not None:
            self.written.update({key: td.get(key) for key in self.head.param_keys.values()})
        return td

    def _mask(self, actions: Actions, rows: torch.Size) -> Tensor | None:
        key, given = self.head.mask_key, self.head.dependence.mask_given
        if key is None:
            return None
        mask = self.head.read_mask(self.td)
        parent = None if given is None else self.parents[given]
        before = self.rows if parent is None else (*self.rows, parent.num_choices)
        shapes = [torch.Size((*before, *shape)) for shape in self.head.mask_shapes]
        # compared dim by dim: sizes may be symbolic under torch.compile
        fits = [len(mask.shape) == len(s) and all(map(operator.eq, mask.shape, s)) for s in shapes]
        if not any(fits):
            todo = "one entry per row and choice; nothing is broadcast"
            if given is not None:
                todo = f"one mask for each choice of {given!r}"
            raise shape_error(key, " or ".join(str(list(s)) for s in shapes), mask, todo)
        mask = mask.expand(rows + mask.shape[len(self.rows) :])
        if parent is None:
            return mask
        assert given is not None
        choice = parent.choice(actions[given])
        event = mask.shape[len(rows) + 1 :]
        index = choice.reshape((*rows, 1, *[1] * len(event))).expand(*rows, 1, *event)
        return mask.gather(len(rows), index).squeeze(len(rows))

    def expand(self, lead: torch.Size) -> HeadConditional:
        """Return the same with the batch dims ``lead`` in front."""
        wide = copy.copy(self)
        wide.td = self.td.expand(*lead, *self.td.batch_size)
        wide.rows = lead + self.rows
        return wide

    def index(self, action: Tensor) -> Tensor:
        """Return the choice that an action is."""
        return self.head.choice(action)

    def write(self, action: Tensor) -> Tensor:
        """Return the action in the dtype in which it is written."""
        return self.head.write(action)

    @property
    def has_zero(self) -> bool:
        """Whether 0 is among all actions."""
        return self.head.has_zero

    def support(self) -> Tensor | None:
        """Return all actions, if they are finitely many."""
        return self.head.all_actions()
