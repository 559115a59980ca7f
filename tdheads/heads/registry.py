"""Which head is built for which spec class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torchrl.data import TensorSpec

from tdheads.checks import show
from tdheads.heads.leaf import LeafHead
from tdheads.keys import NestedKey

Factory = Callable[..., LeafHead]
F = TypeVar("F", bound=Factory)

FACTORIES: dict[type[TensorSpec], Factory] = {}


def register_head(spec_class: type[TensorSpec]) -> Callable[[F], F]:
    """Decorate a factory ``(action_key, spec, *, mask, **options) -> head`` for a spec class.

    ``spec`` has no batch dims. ``options`` holds :func:`make_head`'s keywords (``on_empty``,
    ``validate``, ...), and what ``leaf_options`` gives for the leaf; take what the head needs. A
    later registration replaces an earlier one; a spec takes the entry of its closest base class.

    Example:
        >>> from torchrl.data import NonTensor
        >>> from tdheads import CategoricalHead, make_head
        >>> @register_head(NonTensor)
        ... def first_ten(action_key, spec, *, mask, on_empty, **options):
        ...     return CategoricalHead(action_key, n=10, mask=mask, on_empty=on_empty)
        >>> make_head(NonTensor(())).n
        10
        >>> del FACTORIES[NonTensor]
    """

    def register(factory: F) -> F:
        FACTORIES[spec_class] = factory
        return factory

    return register


def find_factory(key: NestedKey, spec: TensorSpec) -> Factory:
    """Return the factory of the closest class that a spec derives from."""
    for cls in type(spec).__mro__:
        if cls in FACTORIES:
            return FACTORIES[cls]
    known = ", ".join(sorted(cls.__name__ for cls in FACTORIES))
    raise ValueError(
        f"{show(key)}: no head for a {type(spec).__name__} of shape {list(spec.shape)}; there is"
        f" one for {known}; add yours with register_head({type(spec).__name__})"
    )
