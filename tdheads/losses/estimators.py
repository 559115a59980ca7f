"""What TorchRL's advantage estimators take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torchrl.objectives import ValueEstimators
from torchrl.objectives.utils import default_value_kwargs
from torchrl.objectives.value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace
from torchrl.objectives.value.advantages import ValueEstimatorBase

from tdheads.arguments import check_number, unknown_name
from tdheads.compat import MULTI_AGENT_GAE

if TYPE_CHECKING:
    from tdheads.losses.networks import NetworkLossModule

ESTIMATORS: dict[ValueEstimators, type[ValueEstimatorBase]] = {
    ValueEstimators.TD0: TD0Estimator,
    ValueEstimators.TD1: TD1Estimator,
    ValueEstimators.TDLambda: TDLambdaEstimator,
    ValueEstimators.GAE: GAE,
    **MULTI_AGENT_GAE,
    ValueEstimators.VTrace: VTrace,
}


def _keywords(kind: type) -> list[str]:
    """Return the keywords of a class, and of its bases where it passes on what it does not know."""
    known: list[str] = []
    for base in (b for b in kind.__mro__ if "__init__" in vars(b)):
        params = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        known += [param.name for param in params if param.kind is not param.VAR_KEYWORD]
        if all(param.kind is not param.VAR_KEYWORD for param in params):
            break
    return known


def find_estimator(value_type: Any, hyperparams: Mapping[str, Any]) -> ValueEstimators | None:
    """Return which estimator is meant by a member or its name; ``None`` for one of the caller's.

    Raises:
        TypeError: for a keyword that the estimator does not know, and for no estimator at all.
        KeyError: for an unknown name.
        ValueError: for discounts outside of 0 to 1.

    Example:
        >>> find_estimator("gae", {"gamma": 0.99}).name
        'GAE'
    """
    kind = None if is_estimator(value_type) else _member(value_type)
    if kind is not None:
        _check_keywords(ESTIMATORS[kind], hyperparams)
    elif isinstance(value_type, ValueEstimatorBase) and hyperparams:
        raise TypeError(
            f"make_value_estimator: expected no keywords beside a finished"
            f" {type(value_type).__name__}, got {list(hyperparams)}; give them to its constructor"
        )
    for key in ("gamma", "lmbda"):
        if key in hyperparams:
            check_number(key, hyperparams[key], lambda x: 0 <= x <= 1, "from 0 to 1")
    return kind


def build_estimator(
    loss: NetworkLossModule, kind: ValueEstimators, hyperparams: Mapping[str, Any]
) -> ValueEstimatorBase:
    """Build an estimator around the networks of a loss."""
    options = {"value_network": loss.critic_network, **default_value_kwargs(kind), **hyperparams}
    if kind is ValueEstimators.VTrace and "actor_network" not in options:
        options["actor_network"] = loss.get_stateful_net("actor_network")
    return ESTIMATORS[kind](**options)


def is_estimator(value_type: Any) -> bool:
    """Whether this is an estimator or the class of one, and not the name of one.

    Example:
        >>> is_estimator("gae")
        False
    """
    is_class = isinstance(value_type, type) and issubclass(value_type, ValueEstimatorBase)
    return is_class or isinstance(value_type, ValueEstimatorBase)


def _member(value_type: Any) -> ValueEstimators:
    if isinstance(value_type, ValueEstimators):
        return value_type
    if not isinstance(value_type, str):
        raise TypeError(
            "value_type: expected one of ValueEstimators, its name, or an estimator, got"
            f" {value_type!r}"
        )
    by_name = {kind.name.lower(): kind for kind in ESTIMATORS}
    if value_type.lower() not in by_name:
        raise KeyError(unknown_name("make_value_estimator: no estimator", value_type, by_name))
    return by_name[value_type.lower()]


def _check_keywords(kind: type, hyperparams: Mapping[str, Any]) -> None:
    known = _keywords(kind)
    for key in hyperparams:
        if key not in known:
            what = f"make_value_estimator: {kind.__name__} has no keyword"
            raise TypeError(unknown_name(what, key, known))


def is_recurrent(network: nn.Module | None) -> bool:
    """Whether a network has a memory, of torch or of TorchRL.

    Example:
        >>> is_recurrent(nn.Sequential(nn.GRU(3, 4)))
        True
    """
    return network is not None and any(isinstance(m, nn.RNNBase) for m in network.modules())
