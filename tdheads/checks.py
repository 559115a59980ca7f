"""One error style: ``<key>: expected <...>, got <...>; <what to do>``."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from tdheads.entries import read
from tdheads.keys import NestedKey

MAX_ROWS = 5


def eager() -> bool:
    """Whether a check may look at values: not while compiling, exporting or inside ``torch.vmap``.

    Example:
        >>> eager()
        True
    """
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is None


def transformed() -> bool:
    """Whether a transform of ``torch.func`` (vmap, grad, ...) is running.

    Example:
        >>> torch.vmap(lambda x: x + transformed())(torch.zeros(2))
        tensor([1., 1.])
    """
    # torch has no public way to ask
    return not (torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is None)


def show(key: Any) -> str:
    """Return ``key`` as the user would write it."""
    return repr(key)


def shape_error(key: NestedKey, expected: Any, got: Tensor | torch.Size, todo: str) -> ValueError:
    """Build the error for a tensor of the wrong shape.

    Example:
        >>> print(shape_error("action_mask", [4, 6], torch.Size([6]), "give one row per sample"))
        'action_mask': expected shape [4, 6], got [6]; give one row per sample
    """
    shape = got.shape if isinstance(got, Tensor) else got
    expected = list(expected) if isinstance(expected, (tuple, torch.Size)) else expected
    return ValueError(f"{show(key)}: expected shape {expected}, got {list(shape)}; {todo}")


def rows_where(bad: Tensor) -> str:
    """Describe the rows in which ``bad`` (``[*B]``) holds.

    Example:
        >>> rows_where(torch.tensor([False, True, True]))
        'rows 1, 2 (2 of 3)'
    """
    index = bad.nonzero()
    if bad.ndim == 0:
        return "the only row"
    rows = [r[0] if len(r) == 1 else tuple(r) for r in index[:MAX_ROWS].tolist()]
    more = ", ..." if len(index) > MAX_ROWS else ""
    noun = "row" if len(index) == 1 else "rows"
    return f"{noun} {', '.join(map(str, rows))}{more} ({len(index)} of {bad.numel()})"


def missing(key: NestedKey, td: TensorDictBase, todo: str) -> KeyError:
    """Build the error for an entry that is not in the tensordict."""
    found = sorted(map(show, td.keys(include_nested=True, leaves_only=True)))
    holds = ", ".join(found) or "nothing"
    return KeyError(f"{show(key)}: not in the tensordict, which holds {holds}; {todo}")


def require(td: TensorDictBase, key: NestedKey, todo: str) -> Tensor:
    """Read ``key``; a missing entry is an error that lists what is there and says ``todo``.

    Raises:
        TypeError: for what is no tensordict.
        KeyError: for a missing entry.

    Example:
        >>> from tensordict import TensorDict
        >>> require(TensorDict({"action": torch.zeros(3)}), "action", "run the actor first").shape
        torch.Size([3])
    """
    # the class of most is known at a glance, where to ask the abstract base takes long
    if type(td) is TensorDict or isinstance(td, TensorDictBase) or is_tensor_collection(td):
        value = read(td, key)
        if value is None:
            raise missing(key, td, todo)
        return value
    raise TypeError(f"{show(key)}: expected a tensordict that holds it, got {td!r}; {todo}")


def require_tensor(td: TensorDictBase, key: NestedKey, todo: str) -> Tensor:
    """Read ``key``, which has to be a tensor.

    Example:
        >>> from tensordict import TensorDict
        >>> require_tensor(TensorDict({"action": torch.zeros(3)}), "action", "run the actor").shape
        torch.Size([3])
    """
    value = read(td, key) if type(td) is TensorDict else None
    if value is None:
        value = require(td, key, todo)
    if not isinstance(value, Tensor):
        raise TypeError(f"{show(key)}: expected a tensor, got a {type(value).__name__}; {todo}")
    return value


def require_float(td: TensorDictBase, key: NestedKey, todo: str) -> Tensor:
    """Read ``key``, which has to be a tensor of floating point numbers.

    Example:
        >>> from tensordict import TensorDict
        >>> require_float(TensorDict({"advantage": torch.zeros(3)}), "advantage", "run GAE").dtype
        torch.float32
    """
    return check_float(key, require_tensor(td, key, todo))


def check_float(key: NestedKey, value: Any) -> Tensor:
    """Return ``value`` if it is a tensor of floating point numbers.

    Example:
        >>> check_float("advantage", torch.zeros(1))
        tensor([0.])
    """
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(f"{show(key)}: expected one tensor, got a {kind}; store numbers under it")
    if not value.is_floating_point():
        raise dtype_error(key, value)
    return value


def dtype_error(key: NestedKey, got: Tensor) -> TypeError:
    """Build the error for numbers that are not floating point.

    Example:
        >>> print(dtype_error("advantage", torch.tensor([1])))
        'advantage': expected floating point numbers, got torch.int64; convert it with .float()
    """
    return TypeError(
        f"{show(key)}: expected floating point numbers, got {got.dtype}; convert it with .float()"
    )


def check_options(name: str, value: Any, options: Iterable[Any]) -> None:
    """Refuse a keyword that is not one of ``options``.

    Example:
        >>> check_options("on_empty", "error", ("error", "neutral"))
    """
    options = tuple(options)
    if value not in options:
        raise ValueError(f"{name}: expected one of {options}, got {value!r}")


def check_positive(x: Tensor, key: NestedKey, todo: str) -> None:
    """Refuse ``nan`` and numbers that are not positive in ``x`` (``[*B, ...]``).

    Example:
        >>> check_positive(torch.ones(3, 2), "action_scale", "map it")
    """
    check_finite(x, key, todo)
    if x.numel() and x.detach().amin() <= 0:
        bad = x <= 0
        rows = rows_where(bad.flatten(1).any(-1) if bad.ndim > 1 else bad)
        raise ValueError(
            f"{show(key)}: expected positive numbers, got {x.amin():g} in {rows}; {todo}"
        )


def any_nan(*tensors: Tensor) -> bool:
    """Whether there may be a ``nan``: one look at the device, which sees a few cases too many.

    Example:
        >>> any_nan(torch.zeros(3), torch.tensor(float("nan")))
        True
    """
    return math.isnan(total(*tensors))


def total(*tensors: Tensor) -> Tensor:
    """Sum of all numbers: ``nan`` or infinite as soon as one is, without a bool tensor.

    Example:
        >>> total(torch.ones(3), torch.tensor([1.0, 2.0]))
        tensor(6.)
    """
    return functools.reduce(
        torch.add, [(x.detach() if x.requires_grad else x).sum() for x in tensors]
    )


def check_finite(x: Tensor, key: NestedKey, todo: str) -> None:
    """Refuse ``nan`` in ``x`` (``[*B, ...]``), naming the key and the rows.

    Example:
        >>> check_finite(torch.zeros(3, 2), "action_loc", "look at the network")
    """
    if x.numel() and any_nan(x):
        bad = torch.isnan(x)
        bad = bad.flatten(1).any(-1) if bad.ndim > 1 else bad
        if bad.any():
            raise ValueError(f"{show(key)}: nan in {rows_where(bad)}; {todo}")
