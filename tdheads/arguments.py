"""What a constructor is given: ``<keyword>: expected <...>, got <...>; <what to do>``."""

from __future__ import annotations

import difflib
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def check_keywords(cls: type, given: Iterable[str], *, subclass_takes_more: bool = False) -> None:
    """Refuse a keyword that no constructor of ``cls`` knows.

    With ``subclass_takes_more`` a class of another package that takes ``**kwargs`` may have
    keywords of its own, which it does not pass on.

    Example:
        >>> from tdheads import PPOLoss
        >>> check_keywords(PPOLoss, ["entropy_coef"])
        Traceback (most recent call last):
        TypeError: PPOLoss: unknown keyword 'entropy_coef'; did you mean 'entropy_coeff'?
    """
    known, foreign = _known_keywords(cls)
    unknown = [name for name in given if name not in known]
    if unknown and not (subclass_takes_more and foreign):
        hints: Mapping[str, str] = getattr(cls, "keyword_hints", {})
        raise TypeError(unknown_name(f"{cls.__name__}: unknown keyword", unknown[0], known, hints))


def _known_keywords(cls: type) -> tuple[list[str], bool]:
    """Return the keywords of ``cls``, and whether a class of another package takes any."""
    known: dict[str, None] = {}
    foreign = False
    for depth, base in enumerate(b for b in cls.__mro__ if "__init__" in vars(b)):
        params = inspect.signature(vars(base)["__init__"]).parameters.values()
        # what a base takes by position is computed by the class that calls it
        kinds: tuple[Any, ...] = (inspect.Parameter.KEYWORD_ONLY,)
        kinds += () if depth else (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
        known |= dict.fromkeys(p.name for p in params if p.kind in kinds and p.name != "self")
        # a constructor that names them so refuses them
        passes_on = any(p.kind is p.VAR_KEYWORD and p.name != "unknown" for p in params)
        foreign |= passes_on and base.__module__.split(".")[0] != __name__.split(".")[0]
        if not passes_on:
            break
    known |= dict.fromkeys(getattr(cls, "option_names", ()))
    for name in getattr(cls, "fixed_keywords", ()):
        known.pop(name, None)
    return list(known), foreign


def unknown_name(
    what: str, name: str, known: Iterable[str], hints: Mapping[str, str] | None = None
) -> str:
    """Return the message for a name that is not among those that are known.

    Example:
        >>> unknown_name("set_keys: unknown key", "acton", ["action", "value"])
        "set_keys: unknown key 'acton'; did you mean 'action'?"
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.65)
    todo = f"expected one of {', '.join(known)}"
    if near:
        todo = f"did you mean {near[0]!r}?"
    return f"{what} {name!r}; {(hints or {}).get(name, todo)}"


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False: a string like "no" is true.

    Example:
        >>> check_flag("validate", True)
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {value!r}")


def check_number(
    name: str,
    value: Any,
    ok: Callable[[float], bool] = math.isfinite,
    expected: str = "that is finite",
) -> None:
    """Refuse what is no number of the range; the value of a tensor is not looked at.

    Example:
        >>> check_number("temperature", 0.5, lambda x: x > 0, "> 0")
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number:
        raise TypeError(f"{name}: expected a number {expected}, got {value!r}")
    if not (math.isfinite(value) and ok(float(value))):
        raise ValueError(f"{name}: expected a number {expected}, got {value}")


def as_count(value: Any) -> int | None:
    """Return an integer of at least 1, ``None`` for anything else.

    Example:
        >>> as_count(3), as_count(2.5), as_count(True)
        (3, None, None)
    """
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.numel() != 1):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number >= 1 else None


def check_count(name: str, value: Any) -> None:
    """Refuse what is no integer of at least 1.

    Example:
        >>> check_count("num_features", 64)
    """
    if as_count(value) is None:
        kind = ValueError if isinstance(value, (int, float)) else TypeError
        raise kind(f"{name}: expected an integer >= 1, got {value!r}")


def as_shape(key: Any, shape: Any) -> torch.Size:
    """Return the shape of an action, ``()`` for a scalar.

    Example:
        >>> as_shape("action", [2, 3])
        torch.Size([2, 3])
    """
    dims = [None] if isinstance(shape, (str, int)) or shape is None else [*map(as_count, shape)]
    sizes = [dim for dim in dims if dim is not None]
    if len(sizes) != len(dims):
        raise ValueError(
            f"{key!r}: expected the shape of one action, e.g. (3,), or () for a scalar, got"
            f" shape={shape!r}"
        )
    return torch.Size(sizes)


def check_class(name: str, value: Any, classes: Any, expected: str) -> None:
    """Refuse an object of another class; ``None`` is none.

    Example:
        >>> check_class("generator", None, torch.Generator, "a torch.Generator")
    """
    if value is not None and not isinstance(value, classes):
        raise TypeError(f"{name}: expected {expected}, got {value!r}")
