"""What differs between the supported versions of tensordict and torchrl, 0.11 to 0.14."""

from __future__ import annotations

import inspect
from typing import Any

from tensordict import TensorDict
from torch import nn
from torchrl.objectives import ValueEstimators, value

# Since 0.13 to_module keeps a module's parameters as parameters unless told otherwise; before, it
# replaced them, which a functional call needs, and had no such keyword.
_REPLACE: dict[str, Any] = (
    {"preserve_module_state": False}
    if "preserve_module_state" in inspect.signature(TensorDict.to_module).parameters
    else {}
)

#: torchrl has it since 0.13
MULTI_AGENT_GAE: dict[ValueEstimators, Any] = (
    {ValueEstimators.MAGAE: value.MultiAgentGAE} if hasattr(value, "MultiAgentGAE") else {}
)


def swapped_in(params: Any, module: nn.Module) -> Any:
    """Return a context in which ``module`` runs with ``params``.

    Example:
        >>> module = nn.Linear(1, 1)
        >>> params = TensorDict.from_module(module).apply(lambda param: param.detach() * 0)
        >>> with swapped_in(params, module):
        ...     module.weight
        tensor([[0.]])
    """
    return params.to_module(module, **_REPLACE)


def declare(cls: type) -> None:
    """Repeat the annotations of the bases of a loss in the class itself.

    Before 0.12 ``convert_to_functional`` looks for the names of the networks nowhere else, and
    warns.

    Example:
        >>> class Base:
        ...     actor_network: nn.Module
        >>> class Loss(Base):
        ...     epsilon: float
        >>> declare(Loss)
        >>> list(Loss.__annotations__)
        ['actor_network', 'epsilon']
    """
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found |= vars(base).get("__annotations__", {})
    cls.__annotations__ = found
