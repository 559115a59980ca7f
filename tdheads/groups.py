"""One loss per agent group, as one module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from tdheads.checks import show
from tdheads.keys import NestedKey, as_key, as_path
from tdheads.losses import ClipPPOLoss, PolicyLoss
from tdheads.losses.estimators import is_estimator
from tdheads.reduce import add
from tdheads.signals import SIGNALS, with_signals

TERMS = ("loss_objective", "loss_entropy", "loss_critic")


class GroupLosses(TensorDictModuleBase):
    r"""The losses of several agent groups as one module.

    .. math:: L = \sum_g L_g

    ``forward`` returns a tensordict ``{group: tensordict of its loss}`` and the sums of the
    groups' ``loss_objective``, ``loss_entropy`` and ``loss_critic`` (not with
    ``reduction="none"``): one optimizer over
    ``parameters()``, or one per group over ``losses[group].parameters()``, which give the same
    updates as long as the groups share no parameter.

    A reward, done or terminated that is not there for a group is that of the root, given to each of
    its agents.

    Args:
        losses: group -> loss, whose keys name entries of the group; see :func:`make_group_losses`.

    Raises:
        ValueError: for no loss; for a reward or done of the root with other batch dims.
        KeyError: for a reward or done that is neither the group's nor the root's.

    Source: independent PPO, https://arxiv.org/abs/2011.09533; TorchRL's ``group_map``.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead, PPOLoss, make_actor
        >>> def loss(group, n):
        ...     body = TensorDictModule(
        ...         torch.nn.Linear(4, 64), [(group, "observation")], [(group, "hidden")]
        ...     )
        ...     head = CategoricalHead((group, "action"), n)
        ...     return PPOLoss(make_actor(body, head, in_key=(group, "hidden")))
        >>> losses = GroupLosses({"walkers": loss("walkers", 3), "flyers": loss("flyers", 5)})
        >>> list(losses)
        ['walkers', 'flyers']
    """

    def __init__(self, losses: Mapping[str, PolicyLoss]) -> None:
        super().__init__()
        for group, loss in losses.items():
            if not isinstance(loss, PolicyLoss):
                raise TypeError(f"{show(group)}: expected a loss of tdheads, got {loss!r}")
        if not losses:
            raise ValueError("GroupLosses: expected a loss for each group, got none")
        self.groups = list(losses)
        # by name, so that a checkpoint finds its group whatever their order
        self.losses = nn.ModuleDict({_entry(group): loss for group, loss in losses.items()})

    def __getitem__(self, group: str) -> PolicyLoss:
        """Return the loss of a group."""
        if group not in self.groups:
            raise KeyError(f"{show(group)}: expected one of the groups {self.groups}")
        return self.losses[_entry(group)]  # type: ignore[return-value]  # a ModuleDict

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a setting that each loss has for itself, and that nobody would read here.

        Raises:
            AttributeError: for a setting of a loss.
        """
        losses: Any = vars(self).get("_modules", {}).get("losses", {})
        if any(name in loss.settings for loss in losses.values()):
            raise AttributeError(f"{name}: set it for every group, losses[group].{name} = ...")
        super().__setattr__(name, value)

    def __iter__(self) -> Iterator[str]:
        """Yield the groups."""
        yield from self.groups

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.groups)

    def values(self) -> Iterator[PolicyLoss]:
        """Yield the loss of every group."""
        for group in self.groups:
            yield self[group]

    def items(self) -> Iterator[tuple[str, PolicyLoss]]:
        """Yield every group and its loss."""
        for group in self.groups:
            yield group, self[group]

    @property
    def in_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` may read."""
        return list(dict.fromkeys(key for loss in self.values() for key in loss.in_keys))

    @property
    def out_keys(self) -> list[NestedKey]:
        """Every key that ``forward`` writes."""
        keys = [as_key((g, *as_path(key))) for g, loss in self.items() for key in loss.out_keys]
        terms = [term for term in TERMS if any(term in loss.out_keys for loss in self.values())]
        return [*(terms if self._has_sums else []), *keys]

    @property
    def _has_sums(self) -> bool:
        """Whether the groups' terms can be summed: numbers per row of unlike groups cannot."""
        return all(loss.reduction != "none" for loss in self.values())

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> GroupLosses:
        """Choose the advantage estimator of every loss, by its name.

        Raises:
            TypeError: for an estimator that has a network and keys already: each group needs one.
        """
        if is_estimator(value_type) and len(self.groups) > 1:
            raise TypeError(
                "make_value_estimator: expected the name of an estimator, which is built for every"
                f" group, got {value_type!r}; give each group its own:"
                " losses[group].make_value_estimator(...)"
            )
        for loss in self.values():
            loss.make_value_estimator(value_type, **hyperparams)
        return self

    def estimate(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the advantage and the value target of every group, with its loss's estimator."""
        for loss in self.values():
            loss.estimate(tensordict, with_signals(tensordict, loss))
        return tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute every loss; see the class."""
        out = TensorDict()
        for group, loss in self.items():
            known = tensordict.get(loss.tensor_keys.advantage, None) is not None
            out.set(group, loss(tensordict if known else with_signals(tensordict, loss)))
        for term in TERMS if self._has_sums else ():
            found = [out.get((group, term), None) for group in self.groups]
            terms = [x for x in found if x is not None]
            if terms:
                out.set(term, add(terms))
        return out


def _entry(group: str) -> str:
    # a prefix: a module has attributes that a group may be called like, and no dot in a name
    return "group_" + group.replace(".", "/")


def make_group_losses(
    group_map: Iterable[str],
    actors: Mapping[str, Any],
    critics: Mapping[str, Any] | None = None,
    loss_class: type[PolicyLoss] = ClipPPOLoss,
    *,
    alive: str | None = None,
    **options: Any,
) -> GroupLosses:
    """Build the loss of every group, with its keys inside of the group.

    Of the group ``g`` the loss reads the leaves and log-probs that its actor writes, the value that
    its critic writes, and reward, done, terminated, advantage and value target at ``(g, ...)``.

    Args:
        group_map: the groups, e.g. ``env.group_map``.
        actors: group -> actor.
        critics: group -> critic, which writes ``(g, "state_value")``; ``None`` for none.
        loss_class: e.g. :class:`~tdheads.ClipPPOLoss`.
        alive: name of the entry in a group that says which of its agents act, such as PettingZoo's
            ``"mask"``; the others are left out of the policy's terms, and with
            ``alive_in_critic=True`` of the critic's too.
        options: keywords of ``loss_class``, the same for each group; a module among them, such as
            ``value_norm``, is copied, so that each group has statistics of its own.

    Raises:
        KeyError: for a group without an actor or critic.
        ValueError: for actors or critics of no group.

    Source: design of TorchRL's multi-agent tutorials, which set these keys by hand.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> from tdheads import CategoricalHead, make_actor
        >>> body = TensorDictModule(
        ...     torch.nn.Linear(4, 64), [("a", "observation")], [("a", "hidden")]
        ... )
        >>> actor = make_actor(body, CategoricalHead(("a", "action"), 3), in_key=("a", "hidden"))
        >>> losses = make_group_losses(["a"], {"a": actor})
        >>> losses["a"].tensor_keys.reward
        ('a', 'reward')
    """
    groups = list(group_map)
    if len(set(groups)) != len(groups):
        raise ValueError(f"group_map: expected each group once, got {groups}")
    _check_networks("actors", actors, groups)
    if critics is not None:
        _check_networks("critics", critics, groups)
    losses = {}
    for group in groups:
        critic = None if critics is None else critics[group]
        own: dict[str, Any] = {
            name: deepcopy(value) if isinstance(value, nn.Module) else value
            for name, value in options.items()
        }
        loss = loss_class(actors[group], critic, **own)
        keys: dict[str, Any] = {
            name: (group, name) for name in (*SIGNALS, "advantage", "value_target")
        }
        if critic is not None:
            keys["value"] = critic.out_keys[-1]
        if alive is not None:
            keys["alive"] = (group, alive)
        loss.set_keys(**keys)
        losses[group] = loss
    return GroupLosses(losses)


def _check_networks(name: str, networks: Mapping[str, Any], groups: list[str]) -> None:
    """Refuse networks that are not one per group, or that write what is another group's."""
    if extra := [group for group in networks if group not in groups]:
        raise ValueError(f"{name}: {extra} are none of the groups {groups}")
    for group in groups:
        if group not in networks:
            raise KeyError(f"{show(group)}: expected one of the {name}, got {list(networks)}")
        keys = [as_path(key) for key in getattr(networks[group], "out_keys", ())]
        written = {path[0] for path in keys if len(path) > 1}
        others = [other for other in groups if other in written]
        # a critic of all may write beside the groups
        if group not in written and (others or name == "actors"):
            got = f"one that writes those of {others}" if others else f"out_keys={keys}"
            raise ValueError(
                f"{name}[{group!r}]: expected a network that writes entries of {group!r}, got"
                f" {got}; give each group its own, e.g. make_head(..., group={group!r})"
            )
