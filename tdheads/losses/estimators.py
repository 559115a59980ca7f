"""What TorchRL's advantage estimators take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torchrl.objectives import ValueEstimators
from torchrl.objectives.value import (
    GAE,
    MultiAgentGAE,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    VTrace,
)
from torchrl.objectives.value.advantages import ValueEstimatorBase

from tdheads.arguments import check_number, unknown_name

CLASSES: dict[Any, type] = {
    ValueEstimators.TD0: TD0Estimator,
    ValueEstimators.TD1: TD1Estimator,
    ValueEstimators.TDLambda: TDLambdaEstimator,
    ValueEstimators.GAE: GAE,
    ValueEstimators.MAGAE: MultiAgentGAE,
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


def check_estimator(value_type: Any, hyperparams: Mapping[str, Any]) -> None:
    """Refuse a keyword that the estimator does not know, and discounts outside of 0 to 1.

    Example:
        >>> check_estimator(ValueEstimators.GAE, {"gamma": 0.99})
    """
    if isinstance(value_type, ValueEstimatorBase) and hyperparams:
        raise TypeError(
            f"make_value_estimator: expected no keywords beside a finished"
            f" {type(value_type).__name__}, got {list(hyperparams)}; give them to its constructor"
        )
    by_name = {kind.name.lower(): cls for kind, cls in CLASSES.items()}
    name = value_type.lower() if isinstance(value_type, str) else ""
    kind = CLASSES.get(value_type) if name == "" else by_name.get(name)
    if kind is not None:
        known = _keywords(kind)
        for key in hyperparams:
            if key not in known:
                what = f"make_value_estimator: {kind.__name__} has no keyword"
                raise TypeError(unknown_name(what, key, known))
    for key in ("gamma", "lmbda"):
        if key in hyperparams:
            check_number(key, hyperparams[key], lambda x: 0 <= x <= 1, "from 0 to 1")
