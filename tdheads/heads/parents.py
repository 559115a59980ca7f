"""What a leaf head is told of the leaves that it depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict.nn import TensorDictModuleBase

from tdheads.arguments import check_class, check_flag
from tdheads.checks import show
from tdheads.keys import LOG_PROB, NestedKey, as_key, suffixed


class Dependence(NamedTuple):
    """What a leaf head was told of its parents.

    Example:
        >>> Dependence.of("kind", mask_given="kind").parents
        ('kind',)
    """

    when: dict[NestedKey, tuple[int, ...]]
    mask_given: NestedKey | None
    after: tuple[NestedKey, ...]
    enumerate_parents: bool

    @classmethod
    def of(
        cls,
        key: NestedKey,
        when: Mapping[NestedKey, int | Sequence[int]] | None = None,
        mask_given: NestedKey | None = None,
        after: Sequence[NestedKey] = (),
        enumerate_parents: bool = False,
    ) -> Dependence:
        """Check and normalise the keywords of the leaf ``key``."""
        if isinstance(after, str) or not isinstance(after, Iterable):
            raise TypeError(f"{show(key)}: after is a tuple of leaves, got {after!r}")
        check_flag("enumerate_parents", enumerate_parents)
        if enumerate_parents and not after:
            raise ValueError(f"{show(key)}: enumerate_parents is for leaves with after=")
        if when is not None and not isinstance(when, Mapping):
            raise TypeError(f"{show(key)}: when maps parents to choices, got {when!r}")
        choices = {}
        for parent, values in (when or {}).items():
            taken = tuple(values) if isinstance(values, Iterable) else (values,)
            if not taken:
                raise ValueError(f"{show(key)}: when={{{parent!r}: []}} is never true")
            if not all(isinstance(choice, (int, np.integer)) for choice in taken):
                raise TypeError(
                    f"{show(key)}: when={{{parent!r}: {values!r}}}: expected the choices of the"
                    " parent as integers"
                )
            choices[as_key(parent, "when")] = taken
        mask_given = None if mask_given is None else as_key(mask_given, "mask_given")
        parents = tuple(as_key(parent, "after") for parent in after)
        return cls(choices, mask_given, parents, enumerate_parents)

    @property
    def parents(self) -> tuple[NestedKey, ...]:
        """Every leaf it depends on, each once."""
        mask = () if self.mask_given is None else (self.mask_given,)
        return tuple(dict.fromkeys((*self.when, *mask, *self.after)))


def check_distinct(key: NestedKey, in_keys: list[NestedKey]) -> None:
    """Refuse a leaf that reads one entry as two things, or what it writes itself.

    Example:
        >>> check_distinct("action", ["action_logits", "action_mask"])
    """
    keys = [*in_keys, key, suffixed(key, LOG_PROB)]
    twice = [k for k, times in Counter(keys).items() if times > 1]
    if twice:
        raise ValueError(
            f"{show(key)}: expected a key of its own for each of action, log-prob, parameters and"
            f" mask, got {show(twice[0])} twice; rename one"
        )


def check_parameters(
    module: Any, after: tuple[NestedKey, ...], param_keys: Mapping[str, NestedKey]
) -> None:
    """Refuse a parameter module of a leaf that reads none, or that does not write them all.

    Example:
        >>> check_parameters(None, (), {"logits": "action_logits"})
    """
    if module is None:
        return
    check_class("parameters", module, TensorDictModuleBase, "a TensorDictModule")
    if not after:
        raise ValueError(
            "parameters: expected after= beside it, got none; without it a network writes them"
        )
    missing = [key for key in param_keys.values() if key not in module.out_keys]
    if missing:
        raise ValueError(
            f"parameters: expected a module that writes {missing}, got out_keys="
            f"{list(module.out_keys)}; rename what it writes"
        )


def check_floating(key: NestedKey, dtype: torch.dtype | None) -> None:
    """Refuse to round a continuous action to integers.

    Example:
        >>> check_floating("action", torch.float64)
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(
            f"{show(key)}: expected a floating dtype for a continuous action, got dtype={dtype};"
            " for integers use a head of choices"
        )
