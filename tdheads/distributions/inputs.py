"""What distributions do with what they are given: dtypes, masks, values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from tdheads.checks import dtype_error, rows_where, shape_error, show
from tdheads.keys import Names


def spread(values: Tensor, dist: Distribution, expand: bool) -> Tensor:
    """Give every row of a distribution the values of its support: ``[n, *B, *event]``.

    Example:
        >>> dist = torch.distributions.Categorical(torch.ones(2, 3))
        >>> spread(torch.arange(3), dist, expand=False).shape
        torch.Size([3, 1])
    """
    event, ones = values.shape[1:], [1] * len(dist.batch_shape)
    values = values.view((-1, *ones, *event))
    return values.expand(-1, *dist.batch_shape, *event) if expand else values


def upcast(x: Tensor) -> Tensor:
    """Return half and bfloat16 (and integer) input as float32, so that ratios are right."""
    return x if x.dtype is torch.float32 or x.dtype is torch.float64 else x.float()


def only_scores(
    logits: Tensor | None, probs: Tensor | None, names: Names, what: str = "choice"
) -> Tensor:
    """Return the one of logits and probs that is given: a tensor with an entry per choice.

    Example:
        >>> only_scores(torch.zeros(2, 3), None, Names()).shape
        torch.Size([2, 3])
    """
    if (logits is None) == (probs is None):
        raise ValueError(
            f"{show(names.params)}: give either logits or probs, got"
            f" {'none' if logits is None else 'both'}"
        )
    scores = probs if logits is None else logits
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"{show(names.params)}: expected a tensor of logits or probs, got a"
            f" {type(scores).__name__}"
        )
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise shape_error(names.params, "[..., n]", scores, f"one entry per {what}, at least one")
    return scores


def as_bool_mask(
    mask: Tensor | None, shape: torch.Size, names: Names, checks: bool
) -> Tensor | None:
    """Return the mask as bool after checking its shape (always) and its values (``checks``)."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        check_is_mask(mask, names)
    if mask.shape != shape:
        todo = "one entry per row and choice; nothing is broadcast"
        raise shape_error(names.mask, shape, mask, todo)
    if mask.dtype == torch.bool:
        return mask
    if checks and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(
            f"{show(names.mask)}: expected 1 where a choice is legal and 0 elsewhere, got other"
            " values; an additive mask (0 and -inf) has to be turned into `mask == 0`"
        )
    return mask.bool()


def check_is_mask(mask: Tensor | None, names: Names) -> None:
    """Refuse a mask that is no tensor.

    Example:
        >>> check_is_mask(None, Names())
    """
    if mask is not None and not isinstance(mask, Tensor):
        kind = type(mask).__name__
        raise TypeError(f"{show(names.mask)}: expected a tensor or None, got a {kind}")


def check_density_value(value: Tensor, names: Names) -> None:
    """Refuse a continuous action that is not stored as one.

    Example:
        >>> check_density_value(torch.zeros(3), Names())
    """
    if not value.is_floating_point():
        raise dtype_error(names.value, value)


def check_value_shape(value: Tensor, shape: torch.Size, names: Names) -> None:
    """Refuse a value whose trailing dims are not ``shape``: nothing is broadcast into a batch."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{show(names.value)}: expected a tensor of actions, got {value!r}")
    if value.shape[value.ndim - len(shape) :] != shape:
        todo = "an action has one entry per row, and no stray dim of size 1"
        raise shape_error(names.value, f"[..., {str(list(shape))[1:-1]}]", value, todo)


def check_whole(value: Tensor, names: Names) -> None:
    """Refuse numbers between two choices.

    Example:
        >>> check_whole(torch.tensor([1.0]), Names())
    """
    if value.is_floating_point():
        bad = value != value.floor()
        if bad.any():
            raise ValueError(
                f"{show(names.value)}: expected integers, got {value[bad][0].item():g} in"
                f" {rows_where(bad)}; store the action as it was drawn"
            )


def score_in_range(
    score: Callable[[Tensor], Tensor], value: Tensor, n: int, names: Names
) -> Tensor:
    """Score choices from ``0 .. n - 1``; refuse others.

    Example:
        >>> log_probs = torch.tensor([0.2, 0.8]).log()
        >>> score = lambda choice: log_probs.gather(0, choice)
        >>> score_in_range(score, torch.tensor([0]), 2, Names())
        tensor([-1.6094])
    """
    if value.is_floating_point() or value.device.type != "cpu":
        check_range(value, n, names)
        return score(value)
    try:
        return score(value)  # on the CPU to gather is to look
    except (IndexError, RuntimeError):
        check_range(value, n, names)
        raise


def check_range(value: Tensor, n: int, names: Names) -> None:
    """Refuse a choice outside ``0 .. n - 1``."""
    if value.is_floating_point():
        bad = (value < 0) | (value >= n) | (value != value.floor())
    else:  # n may be more than a narrow dtype can hold
        whole = value.long()
        nearest = whole.clamp(0, n - 1)
        if torch.equal(whole, nearest):
            return
        bad = whole != nearest
    if bad.any():
        first = value[bad][0].item()
        raise ValueError(
            f"{show(names.value)}: choice {first} in {rows_where(bad)} is not one of 0 to {n - 1}"
        )
