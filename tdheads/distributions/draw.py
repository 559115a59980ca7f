"""How an exploration type turns a distribution into an action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensordict.nn import InteractionType
from torch import Tensor
from torch.distributions import Distribution, Independent

F = TypeVar("F", bound=Callable[..., Any])


def deterministic(dist: Distribution) -> Tensor:
    """Return the action taken without exploration: ``deterministic_sample``, else the mode.

    Example:
        >>> import torch
        >>> deterministic(torch.distributions.Normal(torch.zeros(2), 1.0))
        tensor([0., 0.])
    """
    if hasattr(dist, "deterministic_sample"):
        return dist.deterministic_sample
    if isinstance(dist, Independent):
        return deterministic(dist.base_dist)
    return dist.mode


def mean(dist: Distribution) -> Tensor:
    """Return the mean of a continuous distribution, the mode of a discrete one (it has no mean)."""
    if dist.support is not None and dist.support.is_discrete:
        return deterministic(dist)
    try:
        return dist.mean
    except NotImplementedError:
        return deterministic(dist)


def random(dist: Distribution) -> Tensor:
    """Draw an action, with a gradient where the distribution offers one."""
    return dist.rsample() if dist.has_rsample else dist.sample()


def looks_first(log_prob: F) -> F:
    """Mark a ``log_prob`` that looks at what it is given, and then returns ``_score`` of it.

    Example:
        >>> import torch
        >>> class Certain(torch.distributions.Distribution):
        ...     @looks_first
        ...     def log_prob(self, value):
        ...         raise ValueError("no action")
        ...
        ...     def _score(self, value):
        ...         return 0 * value
        >>> score_draw(Certain(), torch.ones(2))
        tensor([0., 0.])
    """
    log_prob.looks_first = log_prob  # type: ignore[attr-defined]
    return log_prob


def score_draw(dist: Distribution, action: Tensor) -> Tensor:
    """Return the log-prob of an action that ``draw`` returned, ``[*B]``, without a look at it.

    Example:
        >>> import torch
        >>> score_draw(torch.distributions.Normal(torch.zeros(1), 1.0), torch.zeros(1))
        tensor([-0.9189])
    """
    # the mark is that of the log_prob that counts: a subclass may override, or wrap, that one alone
    log_prob: Any = type(dist).log_prob
    score: Any = dist
    marked = getattr(log_prob, "looks_first", None) is log_prob
    return score._score(action) if marked else score.log_prob(action)


_RULES = {
    InteractionType.RANDOM: random,
    InteractionType.MODE: lambda dist: dist.mode,
    InteractionType.DETERMINISTIC: deterministic,
    InteractionType.MEAN: mean,
}


def draw(dist: Distribution, how: InteractionType) -> Tensor:
    """Draw the action that the exploration type ``how`` asks for, shape ``[*B, *event]``.

    Raises:
        ValueError: for an exploration type without a meaning for actions (MEDIAN).

    Example:
        >>> import torch
        >>> draw(torch.distributions.Normal(torch.zeros(2), 1.0), InteractionType.MEAN)
        tensor([0., 0.])
    """
    if how not in _RULES:
        known = ", ".join(rule.name for rule in _RULES)
        raise ValueError(f"exploration type {how!r}: expected one of {known}")
    return _RULES[how](dist)
