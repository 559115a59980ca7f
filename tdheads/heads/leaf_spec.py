"""The spec of one action leaf without its batch dims, and how many choices it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, TensorSpec


class LeafSpec(NamedTuple):
    """What a leaf of an action spec is.

    Args:
        spec: without batch dims; where agents differ it spans them all.
        differing: the :func:`sizes` that differ along batch dims, ``[*agents, *event]`` each;
            options for the factory.
        batch: the batch dims.
        masked: whether the spec has a mask itself.
    """

    spec: TensorSpec
    differing: dict[str, Tensor]
    batch: torch.Size
    masked: bool

    @property
    def nvec(self) -> Tensor | None:
        """Largest number of choices of each dim, ``[*event]``; ``None`` if they are no choices."""
        if not is_integer_choice(self.spec):
            return None
        nvec = count_choices(**(self.differing or sizes(self.spec)))
        return nvec.reshape(-1, *self.spec.shape).amax(0)

    def narrowed(self, width: int) -> LeafSpec:
        """Return the same integers with at most ``width`` choices in each dim."""
        own = dict(self.differing or sizes(self.spec))
        if "nvec" in own:
            own["nvec"] = own["nvec"].clamp_max(width)
        else:
            last = own["low"].long() + width - 1
            own["high"] = torch.minimum(own["high"].long(), last).to(self.spec.dtype)
        differing = own if self.differing else {}
        return self._replace(spec=spanning(self.spec, own), differing=differing)


def is_integer_choice(spec: TensorSpec) -> bool:
    """Whether an action of the spec is one integer per dim, each a choice.

    Example:
        >>> is_integer_choice(Categorical(3)), is_integer_choice(Binary(3))
        (True, False)
    """
    if isinstance(spec, Bounded):
        return spec.domain == "discrete"
    return isinstance(spec, Categorical) and not isinstance(spec, Binary)


def sizes(spec: TensorSpec) -> dict[str, Tensor]:
    """Return what says how large a spec is: ``low`` and ``high`` of a box, ``nvec`` of choices.

    Example:
        >>> sizes(Categorical(3, shape=(2,)))
        {'nvec': tensor([3, 3])}
    """
    if isinstance(spec, Bounded):
        return {"low": spec.space.low, "high": spec.space.high}
    if isinstance(spec, MultiCategorical):
        return {"nvec": torch.as_tensor(spec.nvec)}
    return {"nvec": torch.full(spec.shape, int(spec.n))}


def stack_sizes(specs: Sequence[TensorSpec], dim: int = 0) -> dict[str, Tensor]:
    """Return the sizes of specs of one class and shape, stacked."""
    rows = list(map(sizes, specs))
    return {name: torch.stack([row[name] for row in rows], dim) for name in rows[0]}


def count_choices(
    nvec: Tensor | None = None, low: Tensor | None = None, high: Tensor | None = None
) -> Tensor:
    """Return the number of choices that sizes stand for.

    Example:
        >>> count_choices(low=torch.tensor([-1, 0]), high=torch.tensor([3, 0]))
        tensor([5, 1])
    """
    if nvec is not None:
        return nvec
    assert low is not None
    assert high is not None
    return high.long() - low.long() + 1


def spanning(spec: TensorSpec, own: dict[str, Tensor]) -> TensorSpec:
    """Return a spec like ``spec`` that holds the actions of all sizes ``[*agents, *event]``.

    Example:
        >>> spanning(Categorical(2), {"nvec": torch.tensor([2, 5])}).n
        5
    """
    rows = {name: value.reshape(-1, *spec.shape) for name, value in own.items()}
    if "low" in rows:
        low, high = rows["low"].amin(0), rows["high"].amax(0)
        return Bounded(low, high, spec.shape, dtype=spec.dtype)
    nvec = rows["nvec"].amax(0)
    if isinstance(spec, MultiCategorical):
        return MultiCategorical(nvec, dtype=spec.dtype)
    return Categorical(int(nvec.max()), shape=spec.shape, dtype=spec.dtype)
