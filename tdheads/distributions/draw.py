"""How an exploration type turns a distribution into an action."""

from __future__ import annotations

from typing import Any

from tensordict.nn import InteractionType
from torch import Tensor
from torch.distributions import Distribution, Independent


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


def score_draw(dist: Distribution, action: Tensor) -> Tensor:
    """Return the log-prob of an action that ``draw`` returned, ``[*B]``.

    The same number as ``log_prob`` gives, which looks at what it is given first: a class that
    defines ``_score`` beside its ``log_prob`` has that without the look.

    Example:
        >>> import torch
        >>> score_draw(torch.distributions.Normal(torch.zeros(1), 1.0), torch.zeros(1))
        tensor([-0.9189])
    """
    # of the class whose log_prob counts: a subclass may override that one alone
    own = next(kind for kind in type(dist).__mro__ if "log_prob" in vars(kind))
    score: Any = getattr(own, "_score" if "_score" in vars(own) else "log_prob")
    return score(dist, action)


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
