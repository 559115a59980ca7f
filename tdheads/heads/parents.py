"""What a leaf head is told of the leaves that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tdheads.checks import show
from tdheads.keys import NestedKey, as_key


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
        if isinstance(after, str):
            raise TypeError(f"{show(key)}: after is a tuple of leaves, got {after!r}")
        if when is not None and not isinstance(when, Mapping):
            raise TypeError(f"{show(key)}: when maps parents to choices, got {when!r}")
        choices = {}
        for parent, values in (when or {}).items():
            values = tuple(values) if isinstance(values, Iterable) else (int(values),)
            if not values:
                raise ValueError(f"{show(key)}: when={{{parent!r}: []}} is never true")
            choices[as_key(parent)] = values
        mask_given = None if mask_given is None else as_key(mask_given)
        return cls(choices, mask_given, tuple(map(as_key, after)), enumerate_parents)

    @property
    def parents(self) -> tuple[NestedKey, ...]:
        """Every leaf it depends on, each once."""
        mask = () if self.mask_given is None else (self.mask_given,)
        return tuple(dict.fromkeys((*self.when, *mask, *self.after)))
