"""Looks at values, each of which is a host synchronisation: taken one by one, or all at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

from torch import Tensor

from tdheads.checks import any_nan, total

#: raises where the values are wrong, and says nothing where they are not
Explain: TypeAlias = Callable[[], Any]
#: returns what is nan in the rows of which the log-prob is nan
Implied: TypeAlias = Callable[[], Tensor]

_GATHERED: ContextVar[Looks | None] = ContextVar("gathered looks", default=None)


def look(explain: Explain, *inputs: Tensor, implied: Implied | None = None) -> None:
    """Call ``explain``, which raises, if there may be a ``nan``: now, or as :class:`Looks` decide.

    ``implied`` returns what is ``nan`` in every row whose log-prob is ``nan``: whoever looks at the
    log-probs need not look there.

    Example:
        >>> import torch
        >>> look(lambda: print("a nan"), torch.tensor([float("nan")]))
        a nan
    """
    gathered = _GATHERED.get()
    if gathered is not None:
        gathered.pending.append((explain, inputs, implied))
    elif any_nan(*inputs, *(() if implied is None else (implied(),))):
        explain()


class Looks:
    """Gathers the looks at what distributions are built from, for one look at what comes of it.

    Example:
        >>> import torch
        >>> with Looks() as looks:
        ...     look(lambda: print("a nan"), x := torch.tensor([float("nan")]))
        >>> if not looks.settle(x.exp()):
        ...     print("of which nothing good came")
        a nan
        of which nothing good came
    """

    def __init__(self) -> None:
        self.pending: list[tuple[Explain, tuple[Tensor, ...], Implied | None]] = []

    def __enter__(self) -> Looks:
        """Gather the looks that follow."""
        self._token = _GATHERED.set(self)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Gather no more; an error may come from values that were not looked at yet."""
        _GATHERED.reset(self._token)
        if error is not None:
            self.explain()

    def settle(self, log_prob: Tensor) -> bool:
        """Look at the inputs and at the joint log-prob; return whether all are finite.

        Raises:
            ValueError: what the looks that were gathered raise.
        """
        inputs = [x for _, given, _ in self.pending for x in given]
        finite = math.isfinite(total(log_prob, *_whole(inputs)))
        if not finite:
            self.explain()
        return finite

    def explain(self) -> None:
        """Take every look on its own, which raises in the words of the distribution."""
        for explain, _, _ in self.pending:
            explain()

    def take(self) -> None:
        """Take every look now, as if they had not been gathered."""
        pending, self.pending = self.pending, []
        for explain, inputs, implied in pending:
            look(explain, *inputs, implied=implied)


def _whole(views: list[Tensor]) -> list[Tensor]:
    """Return the tensors that these are parts of, where most of it is among them.

    The parameters of all leaves are parts of what one layer wrote: one sum instead of many.
    """
    parts: dict[int, list[Tensor]] = {}
    sizes: dict[int, int] = {}
    for x in views:
        base = x._base
        # a view as another kind of number: nan of one need not be nan of the other
        alone = base is None or base.dtype is not x.dtype
        whole = id(x if alone else base)
        parts.setdefault(whole, []).append(x)
        sizes[whole] = sizes.get(whole, 0) + x.numel()
    out: list[Any] = []
    for key, found in parts.items():
        base = found[0]._base
        covered = base is not None and key == id(base) and base.numel() <= 2 * sizes[key]
        out += [base] if covered else found
    return out
