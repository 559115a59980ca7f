"""Runs networks on a tensordict without what a call of tensordict's modules costs besides."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    dispatch,
)
from tensordict.nn.utils import skip_existing
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from tdheads.entries import read, write

#: attributes with which a module does something else than to call its network
_CHANGED = ("method", "method_kwargs", "_get_kwargs", "strict", "forward")


def run(module: TensorDictModuleBase, td: TensorDictBase) -> TensorDictBase:
    """Return ``module(td)``, which writes into ``td``.

    A module that only reads keys, calls a network and writes keys is not called itself: tensordict
    searches the disk for pandas for every tensor that is written, which takes longer than a layer.

    Example:
        >>> import torch
        >>> double = TensorDictModule(lambda x: 2 * x, ["x"], ["y"])
        >>> run(double, TensorDict({"x": torch.ones(1)}))["y"]
        tensor([2.])
    """
    return module(td) if is_watched() else run_parts(module, td)


def is_watched() -> bool:
    """Whether something is asked of every call of a module.

    Example:
        >>> is_watched()
        False
    """
    return bool(skip_existing() or _has_any_global_hook())


def run_parts(module: Any, td: TensorDictBase) -> TensorDictBase:
    """Do what :func:`run` does, where nothing is asked of every call of a module.

    Example:
        >>> import torch
        >>> double = TensorDictModule(lambda x: 2 * x, ["x"], ["y"])
        >>> run_parts(double, TensorDict({"x": torch.ones(1)}))["y"]
        tensor([2.])
    """
    if not _hooked(module):
        if _is_plain(module):
            inputs = [read(td, key) for key in module.in_keys]
            if NoneType not in map(type, inputs):
                return _write(td, module.out_keys, _inner(module)(*inputs))
        elif is_plain_sequence(module):
            for part in parts_of(module):
                td = run_parts(part, td)
            return td
    return module(td)


def dispatched(forward: Callable[..., Any], *, auto_batch_size: bool = True) -> Callable[..., Any]:
    """Let a module be called without a tensordict too, as tensordict's ``dispatch`` does.

    A call with a tensordict does not ask for the module's keys first.

    Example:
        >>> class Double(TensorDictModuleBase):
        ...     in_keys, out_keys = ["x"], ["y"]
        ...
        ...     @dispatched
        ...     def forward(self, tensordict):
        ...         return tensordict.set("y", 2 * tensordict["x"])
        >>> Double()(x=1 * [1]), Double()(TensorDict(x=1 * [1]))["y"]
        (tensor([2]), tensor([2]))
    """
    other = dispatch(auto_batch_size=auto_batch_size)(forward)

    @functools.wraps(other)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            (td,) = args
            if type(td) is TensorDict or isinstance(td, TensorDictBase):
                return forward(self, td)
        return other(self, *args, **kwargs)

    return call


def _write(td: TensorDictBase, keys: list[Any], found: Any) -> TensorDictBase:
    values = found if isinstance(found, tuple) else (found,)
    named = not isinstance(found, (Tensor, tuple)) and hasattr(found, "keys")
    if named and all(key in found for key in keys):
        values = tuple(found.get(key) for key in keys)
    entries = []
    for key, value in zip(keys, values, strict=True):
        if key != "_":
            is_entry = isinstance(value, Tensor)
            entries.append((key, value if is_entry else TensorDict.from_any(value)))
    write(td, entries)
    return td


def _inner(module: Any) -> Any:
    """Return ``module.module``, for which tensordict looks in many places."""
    inner = module._modules.get("module")
    return module.module if inner is None else inner


def _inherits(module: Any, base: type, *methods: str) -> bool:
    """Whether a module's class has these methods of a base."""
    kind = type(module)
    return kind is base or all(getattr(kind, name, None) is getattr(base, name) for name in methods)


def _is_plain(module: Any) -> bool:
    return (
        _inherits(module, TensorDictModule, "forward", "_call_module", "_write_to_tensordict")
        and module.inplace is True
        and module._kwargs is None
        and not any(map(vars(module).get, _CHANGED))
    )


def is_plain_sequence(module: Any) -> bool:
    """Whether a module does nothing but to run its parts one after the other.

    Example:
        >>> is_plain_sequence(TensorDictSequential(TensorDictModule(nn.Tanh(), ["x"], ["y"])))
        True
    """
    return (
        _inherits(module, TensorDictSequential, "forward", "_run_module")
        and module.inplace is None
        and not (module.partial_tolerant or module._select_before_return)
        and "forward" not in vars(module)
    )


def _hooked(module: nn.Module) -> bool:
    compiled = module._compiled_call_impl is not None  # module.compile()
    return compiled or bool(module._forward_hooks or module._forward_pre_hooks)


def parts_of(sequence: Any) -> Iterable[Any]:
    """Return the modules of a sequence, in order.

    Example:
        >>> len(list(parts_of(TensorDictSequential(TensorDictModule(nn.Tanh(), ["x"], ["y"])))))
        1
    """
    return _inner(sequence)._modules.values()  # a list or a dict, which take long to say it
