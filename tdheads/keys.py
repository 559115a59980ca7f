"""The one rule for keys: what belongs to the leaf ``K`` is ``K`` with a suffix on its last part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

NestedKey: TypeAlias = str | tuple[str, ...]

MASK = "_mask"
LOGITS = "_logits"
LOC = "_loc"
SCALE = "_scale"
LOG_PROB = "_log_prob"
ENTROPY = "_entropy"
KL = "_kl"


def as_key(key: NestedKey, name: str = "key") -> NestedKey:
    """Return the canonical form of a key: a string, or a tuple of at least two strings.

    Raises:
        TypeError: if the key is neither a string nor a (nested) tuple of strings; it says ``name``.

    Example:
        >>> as_key(("agents", ("action",)))
        ('agents', 'action')
        >>> as_key(("action",))
        'action'
    """
    if isinstance(key, str):
        return key
    given: Any = key  # whatever a caller without types gives
    flat = tuple(_parts(given)) if isinstance(given, tuple) else (given,)
    if not flat or not all(isinstance(part, str) for part in flat):
        raise TypeError(f"{name}: expected a string or a tuple of strings, got {key!r}")
    return flat[0] if len(flat) == 1 else flat


def _parts(key: tuple[Any, ...]) -> Iterator[Any]:
    for part in key:
        if isinstance(part, tuple):
            yield from _parts(part)
        else:
            yield part


def suffixed(key: NestedKey, suffix: str) -> NestedKey:
    """Append ``suffix`` to the last element of ``key``.

    Example:
        >>> suffixed("action", "_mask")
        'action_mask'
        >>> suffixed(("agents", "action"), "_log_prob")
        ('agents', 'action_log_prob')
    """
    key = key if isinstance(key, str) else as_key(key)
    if isinstance(key, str):
        return key + suffix
    return (*key[:-1], key[-1] + suffix)


def as_path(key: NestedKey) -> tuple[str, ...]:
    """Return ``key`` as a tuple, so that it can be joined to a prefix.

    Example:
        >>> ("leaf_kl_approx", *as_path("action"))
        ('leaf_kl_approx', 'action')
    """
    key = key if isinstance(key, str) else as_key(key)
    return (key,) if isinstance(key, str) else key


class Names(NamedTuple):
    """What a distribution calls its inputs in an error: the keys they were read from.

    Example:
        >>> Names().mask
        'mask'
        >>> Names.of("action").mask
        'action_mask'
    """

    value: NestedKey = "value"
    mask: NestedKey = "mask"
    params: NestedKey = "logits"

    @classmethod
    def of(cls, key: NestedKey, mask: NestedKey | None = None, params: str = LOGITS) -> Names:
        """Name the inputs of the leaf ``key``; ``mask`` overrides its default key."""
        return cls(as_key(key), as_key(mask or suffixed(key, MASK)), suffixed(key, params))
