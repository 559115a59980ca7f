"""Reward, done and terminated of a group, which may be those of the root."""

from __future__ import annotations

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdheads.checks import missing, shape_error
from tdheads.keys import as_path
from tdheads.losses import PolicyLoss

SIGNALS = ("reward", "done", "terminated")


def with_signals(td: TensorDictBase, loss: PolicyLoss, *, lenient: bool = False) -> TensorDictBase:
    """Return a copy of the batch in which reward, done and terminated are there for the group.

    One that is not is that of the root, under the last part of its key, given to each agent. If it
    is neither the group's nor the root's that is an error, unless ``lenient``.

    Shapes: ``[*B, 1]`` -> ``[*B, agents, 1]``.
    """
    td = td.copy()
    if td.get("next", None) is None:
        return td
    for name in SIGNALS:
        key = as_path(getattr(loss.tensor_keys, name))
        nested = td.get(("next", *key), None)
        if nested is not None or len(key) == 1:
            continue
        signal = td.get(("next", key[-1]), None)
        if signal is None:
            if lenient or name == "terminated":  # done is taken for it
                continue
            todo = f"give it for the group, or for all at {('next', key[-1])!r}"
            raise missing(("next", *key), td, todo)
        td.set(("next", *key), _to_agents(signal, td, key))
    return td


def _to_agents(signal: Tensor, td: TensorDictBase, key: tuple[str, ...]) -> Tensor:
    group = ("next", *key[:-1])
    if td.get(group, None) is None:  # with observations of the root only the action is the group's
        td.set(group, TensorDict({}, td.get(key[:-1], td).batch_size))
    shape = td.get(group).batch_size
    own = td.batch_size
    if signal.shape != (*own, 1):
        todo = "one per row of the batch, with a trailing dim of size 1"
        raise shape_error(("next", key[-1]), (*own, 1), signal, todo)
    agents = len(shape) - len(own)
    return signal.reshape((*own, *[1] * agents, 1)).expand(*shape, 1)
