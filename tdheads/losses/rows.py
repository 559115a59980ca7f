"""Which rows of a batch count, and what the others hold instead of their garbage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdheads.checks import missing, require_tensor, shape_error
from tdheads.entries import read
from tdheads.keys import NestedKey, as_path

#: where TorchRL's estimators mark the rows that count, if they looked past the end of an episode
SHIFTED_VALID = "shifted_valid"
#: where a collector writes which trajectory a step is of
TRAJECTORIES: NestedKey = ("collector", "traj_ids")


class Valid(NamedTuple):
    """Rows that count: ``[*B]`` of the tensordict, and ``[*B, agents]`` if a mask says so.

    A per-agent mask belongs to the entries of its group, the nested tensordict that holds it.
    """

    rows: Tensor
    agents: Tensor | None = None
    group: tuple[str, ...] = ()

    def for_rows(self, shape: torch.Size) -> Tensor:
        """Return the mask for policy rows: agents share the mask of their team.

        Raises:
            ValueError: for a mask that has more dims than the rows, or other ones.

        Example:
            >>> Valid(torch.tensor([True, False])).for_rows(torch.Size([2, 3]))[:, 0]
            tensor([ True, False])
        """
        if self.agents is not None and self.agents.ndim > len(shape):
            raise ValueError(
                f"validity mask (loss_mask_key) of shape {list(self.agents.shape)}: expected one"
                f" entry per row of the log-prob, {list(shape)}; reduce it over its last dims"
            )
        return self.for_values(shape)

    def for_values(self, shape: torch.Size) -> Tensor:
        """Return the mask for the critic's rows: a team's value counts if one of its agents does.

        Example:
            >>> agents = torch.tensor([[True, False], [False, False]])
            >>> Valid(agents.any(-1), agents).for_values(torch.Size([2]))
            tensor([ True, False])
        """
        mask = self.rows if self.agents is None or self.agents.ndim > len(shape) else self.agents
        return _pad_dims(mask, len(shape)).expand(shape)

    def for_entry(self, key: NestedKey, value: Tensor, *, rowwise: bool = False) -> Tensor | None:
        """Return the mask for an entry, in front of its other dims; ``None`` if it has no rows.

        ``rowwise`` entries have one row per agent wherever their dims say so, such as an advantage;
        others, such as an observation, only beside the mask, and with dims of their own.

        Example:
            >>> valid = Valid(torch.tensor([True]), torch.tensor([[True, False]]))
            >>> valid.for_entry("advantage", torch.zeros(1, 2, 1), rowwise=True).flatten()
            tensor([ True, False])
        """
        path = as_path(key)[:-1]
        agents = self.agents
        beside = path[: len(self.group)] == self.group
        if agents is not None and not rowwise and not (beside and value.ndim > agents.ndim):
            agents = None
        for mask in (agents, self.rows):
            if mask is not None and mask.ndim and value.shape[: mask.ndim] == mask.shape:
                return _pad_dims(mask, value.ndim)
        return None


def check_order(td: TensorDictBase, valid: Valid | None = None) -> None:
    """Refuse steps of different trajectories in one sequence, which a memory would run across.

    Looked at where the collector's ``traj_ids`` ``[*B]`` and ``is_init`` ``[*B, 1]`` are stored;
    time is the last batch dim.

    Raises:
        ValueError: for a trajectory that begins without ``is_init``.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"is_init": torch.tensor([[True], [False]])}, [2])
        >>> td["collector", "traj_ids"] = torch.tensor([3, 3])
        >>> check_order(td)
    """
    ids, first = td.get(TRAJECTORIES, None), td.get("is_init", None)
    if not isinstance(ids, Tensor) or not isinstance(first, Tensor) or not td.batch_dims:
        return
    ids, first = ids.reshape(td.batch_size), first.reshape(td.batch_size)
    stray = (ids[..., 1:] != ids[..., :-1]) & ~first[..., 1:]
    if valid is not None:  # what padding holds is nobody's
        stray = stray & valid.rows[..., 1:] & valid.rows[..., :-1]
    if stray.any():
        raise ValueError(
            f"{TRAJECTORIES}: expected sequences of one trajectory, or of several that begin with"
            f" is_init, along the last batch dim of {list(td.batch_size)}, got"
            f" {int(stray.sum())} changes without; give a recurrent network whole rows or the"
            " slices of a SliceSampler, reshaped to [slices, time], not single steps"
        )


def find_valid(
    td: TensorDictBase, mask_keys: Iterable[NestedKey], *, required: str = ""
) -> Valid | None:
    """Combine the validity masks that are there; ``None`` if there is none.

    ``required`` says what to do about a mask that is missing; empty, it need not be there.

    A trailing dim of size 1, as masks next to ``[*B, 1]`` rewards have, is dropped.

    Raises:
        KeyError: for a missing mask, if it is required.
        ValueError: for a mask that does not start with the batch dims.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"valid": torch.tensor([[True], [False]])}, [2])
        >>> find_valid(td, ["valid", "other"]).rows
        tensor([ True, False])
    """
    found: Valid | None = None
    for key in mask_keys:
        mask = read(td, key)
        if mask is None:
            if required:
                raise missing(key, td, required)
            continue
        if not isinstance(mask, Tensor):
            mask = require_tensor(td, key, "name the entry that is a mask")
        mask = mask.bool()
        ndim = max(td.batch_dims, 1)
        while mask.ndim > ndim and mask.shape[-1] == 1:
            mask = mask.squeeze(-1)
        if mask.shape[: td.batch_dims] != td.batch_size:
            raise shape_error(key, td.batch_size, mask, "one entry per row of the batch")
        agents = mask if mask.ndim > ndim else None
        rows = mask if agents is None else mask.flatten(ndim).any(-1)
        new = Valid(rows, agents, as_path(key)[:-1])
        found = new if found is None else both(found, new, key)
    return found


def both(a: Valid, b: Valid, key: NestedKey) -> Valid:
    """Return the rows that count by either mask; errors name the second one.

    Example:
        >>> rows = torch.tensor([True, False])
        >>> both(Valid(rows), Valid(~rows), "mask").rows
        tensor([False, False])
    """
    rows = a.rows & b.rows
    if a.agents is not None and b.agents is not None:
        if a.agents.shape != b.agents.shape:
            raise shape_error(key, a.agents.shape, b.agents, "the same agents in every mask")
        return Valid(rows, a.agents & b.agents, a.group)
    one = a if a.agents is not None else b
    if one.agents is None:
        return Valid(rows)
    return Valid(rows, one.agents & _pad_dims(rows, one.agents.ndim), one.group)


def clean_inputs(td: TensorDictBase, valid: Valid, keys: Iterable[NestedKey]) -> TensorDictBase:
    """Set what is not finite in the invalid rows of network inputs to 0.

    What such a row holds must reach no parameter, and ``0 * nan`` is ``nan`` in a backward pass, so
    leaving it out of the mean is not enough: no network may see it. All finite entries stay: the
    history of a recurrent network and the neighbours of an agent are legitimate inputs.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"x": torch.tensor([float("nan"), 1.0])}, [2])
        >>> clean_inputs(td, Valid(torch.tensor([False, True])), ["x"])["x"]
        tensor([0., 1.])
    """
    for key in keys:
        value = td.get(key, None)
        if isinstance(value, Tensor) and value.is_floating_point():
            mask = valid.for_entry(key, value)
            if mask is not None:
                td.set(key, torch.where(mask | value.isfinite(), value, 0))
    return td


def fill(
    td: TensorDictBase,
    valid: Valid,
    keys: Iterable[NestedKey],
    content: float | Tensor,
) -> TensorDictBase:
    """Give the invalid rows of entries that no network reads a content that does no harm.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"m": torch.tensor([False, True])}, [2])
        >>> fill(td, Valid(torch.tensor([False, True])), ["m"], 1)["m"]
        tensor([True, True])
    """
    for key in keys:
        value = td.get(key, None)
        if isinstance(value, Tensor):
            mask = valid.for_entry(key, value, rowwise=True)
            if mask is not None:
                content = torch.as_tensor(content, device=value.device).to(value.dtype)
                td.set(key, torch.where(mask, value, content))
    return td


def _pad_dims(x: Tensor, ndim: int) -> Tensor:
    return x.reshape((*x.shape, *[1] * (ndim - x.ndim)))
