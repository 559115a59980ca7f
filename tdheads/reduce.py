"""Sum over leaves, sum over event dims, masked mean: the only place where a shape is collapsed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor


def add(terms: Iterable[Tensor]) -> Tensor:
    """Sum equally shaped tensors, at least one.

    Example:
        >>> add([torch.ones(2), torch.ones(2)])
        tensor([2., 2.])
    """
    return functools.reduce(torch.add, terms)


def sum_leaves(leaves: TensorDictBase) -> Tensor:
    r"""Sum the entries of a tensordict of equally shaped tensors: ``x = sum_l x_l``.

    Shapes: every entry ``[*B]`` -> ``[*B]``.

    Example:
        >>> from tensordict import TensorDict
        >>> sum_leaves(TensorDict({"a": torch.ones(3), ("g", "b"): torch.ones(3)}))
        tensor([2., 2., 2.])
    """
    return add(leaves.values(include_nested=True, leaves_only=True))


def mean_leaves(leaves: TensorDictBase) -> Tensor:
    """Mean of the entries of a tensordict of equally shaped tensors.

    Example:
        >>> from tensordict import TensorDict
        >>> mean_leaves(TensorDict({"a": torch.ones(3), "b": torch.zeros(3)}))
        tensor([0.5000, 0.5000, 0.5000])
    """
    return torch.stack(list(leaves.values(include_nested=True, leaves_only=True))).mean(0)


def sum_event(x: Tensor, event_ndim: int) -> Tensor:
    """Sum over the last ``event_ndim`` dims: ``[*B, *event]`` -> ``[*B]``.

    Example:
        >>> sum_event(torch.ones(2, 3, 5), 2)
        tensor([15., 15.])
    """
    return x if event_ndim == 0 else x.sum(tuple(range(-event_ndim, 0)))


def masked_sum(x: Tensor, valid: Tensor | None) -> Tensor:
    """Sum of ``x`` over the rows where ``valid`` holds; what the other rows hold has no effect.

    Rows are selected, not multiplied: ``0 * nan`` would be ``nan``, in value and in gradient.

    Example:
        >>> masked_sum(torch.tensor([1.0, float("nan")]), torch.tensor([True, False]))
        tensor(1.)
    """
    return x.sum() if valid is None else torch.where(valid, x, 0).sum()


def masked_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Mean of ``x`` over the rows where ``valid`` holds, 0 if there is none.

    Shapes: ``x`` and ``valid`` ``[*B]`` -> ``[]``.

    Example:
        >>> masked_mean(torch.tensor([1.0, 3.0, float("inf")]), torch.tensor([True, True, False]))
        tensor(2.)
        >>> masked_mean(torch.zeros(0), None)
        tensor(0.)
    """
    if valid is None:
        return x.mean() if x.numel() else x.sum()
    return masked_sum(x, valid) / valid.sum().clamp_min(1)


def masked_means(rows: Sequence[Tensor], valid: Tensor | None) -> Tensor:
    """Mean of each entry as :func:`masked_mean` takes it, all in one pass.

    Shapes: every entry and ``valid`` ``[*B]`` -> ``[entries]``.

    Example:
        >>> masked_means([torch.tensor([1.0, 3.0]), torch.zeros(2)], None)
        tensor([2., 0.])
    """
    stacked = torch.stack(tuple(rows))
    if stacked.ndim != 2:
        stacked = stacked.reshape(len(rows), -1)
    if valid is not None:
        return torch.where(valid.reshape(-1), stacked, 0).sum(1) / valid.sum().clamp_min(1)
    return stacked.mean(1) if stacked.shape[1] else stacked.sum(1)


def masked_max(x: Tensor, valid: Tensor | None) -> Tensor:
    """Largest non-negative ``x`` over the rows where ``valid`` holds, 0 if there is none.

    Example:
        >>> masked_max(torch.tensor([1.0, 3.0]), torch.tensor([True, False]))
        tensor(1.)
    """
    if valid is not None:
        x = x.masked_fill(~valid, 0)
    return x.amax() if x.numel() else x.sum()
