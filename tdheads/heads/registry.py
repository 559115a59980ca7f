"""Which head is built for which spec class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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

    Raises:
        TypeError: for what is no class of specs, and for a factory that cannot be called.

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
    given: Any = spec_class
    if not (isinstance(given, type) and issubclass(given, TensorSpec)):
        raise TypeError(
            f"register_head: expected a class of TorchRL's specs, got {spec_class!r}; write"
            " @register_head(Bounded) above the factory"
        )

    def register(factory: F) -> F:
        if not callable(factory):
            raise TypeError(
                f"register_head({spec_class.__name__}): expected a function (action_key, spec, *,"
                f" mask, **options) -> head, got {factory!r}"
            )
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


def check_built(head: Any, key: NestedKey, spec: TensorSpec) -> LeafHead:
    """Return what a factory built, if it is the head of the leaf ``key``.

    Example:
        >>> from torchrl.data import Categorical
        >>> from tdheads import CategoricalHead
        >>> check_built(CategoricalHead("kind", 3), "kind", Categorical(3)).n
        3
    """
    kind = type(spec).__name__
    if not isinstance(head, LeafHead):
        raise TypeError(
            f"{show(key)}: expected a LeafHead from the factory registered for {kind}, got {head!r}"
        )
    if head.action_key != key:
        raise ValueError(
            f"{show(key)}: expected the factory registered for {kind} to build the head of this"
            f" key, got that of {show(head.action_key)}; pass it the action_key it is given"
        )
    return head
