"""What distributions that are made of categorical choices have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence

from tdheads.arguments import check_keywords
from tdheads.distributions.inputs import check_is_mask, only_scores
from tdheads.distributions.layout import Layout
from tdheads.distributions.masked_categorical import check_same_choices
from tdheads.distributions.movable import Movable
from tdheads.keys import Names
from tdheads.reduce import sum_event

T = TypeVar("T", bound="ChoiceDistribution")


class ChoiceDistribution(Movable, Distribution):
    """Base of distributions whose values are another form of the choices of ``base``.

    ``base`` has the batch dims of this distribution, and possibly more: independent choices, which
    make up one value. What is asked of ``base`` is summed over them.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    closed = True
    #: keywords that are passed on to ``base``
    option_names: tuple[str, ...] = ("probs", "on_empty", "names", "validate_args")
    base: Any

    def _set(self, base: Any, batch_shape: torch.Size, event_shape: torch.Size) -> None:
        self.base = base
        Distribution.__init__(self, batch_shape, event_shape, validate_args=False)

    def expand(self: T, batch_shape: Any, _instance: Any = None) -> T:
        """Return a view of the distribution with a larger batch shape."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        for name, value in vars(self).items():
            setattr(new, name, value)
        shape = torch.Size(batch_shape)
        inner = self.base.batch_shape[len(self.batch_shape) :]
        new._set(self.base.expand(shape + inner), shape, self.event_shape)
        return new

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of options of each choice: two distributions are comparable if it is the same."""
        return tuple(self.event_shape)

    @property
    def choices_ndim(self) -> int:
        """Number of dims of ``base`` that are independent choices."""
        return len(self.base.batch_shape) - len(self.batch_shape)

    @property
    def names(self) -> Names:
        """The keys that errors speak of."""
        return self.base.names

    @property
    def validates(self) -> bool:
        """Whether values are looked at (a host synchronisation)."""
        return self.base.validates

    @property
    def empty(self) -> Tensor | None:
        """Rows with nothing to choose, ``[*B]``; ``None`` if that is an error."""
        rows = self.base.empty
        return rows.all(-1) if rows is not None and self.choices_ndim else rows

    @property
    def logits(self) -> Tensor:
        """Log-probabilities of the choices, ``-inf`` where illegal."""
        return self.base.logits

    @property
    def probs(self) -> Tensor:
        """Probabilities of the choices, exactly 0 where illegal."""
        return self.base.probs

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode: what acting without exploration takes."""
        return self.mode

    def entropy(self) -> Tensor:
        """Entropy over the legal choices in nats, ``[*B]``."""
        return sum_event(self.base.entropy(), self.choices_ndim)


def check_passed_on(cls: type[ChoiceDistribution], options: Mapping[str, Any]) -> None:
    """Refuse a keyword that ``base`` does not know, in the name of the class that was called.

    Example:
        >>> check_passed_on(ChoiceDistribution, {"on_empty": "neutral"})
    """
    # signatures are looked at once something is wrong: a distribution is built for every batch
    if any(name not in cls.option_names for name in options):
        check_keywords(cls, options, subclass_takes_more=True)


def kl_of_choices(p: ChoiceDistribution, q: ChoiceDistribution) -> Tensor:
    """KL of two distributions of one kind: that of their choices, summed over independent ones."""
    check_same_choices(p.sizes, q.sizes)
    return sum_event(kl_divergence(p.base, q.base), p.choices_ndim)


def packed_choices(
    kind: Callable[..., Any],
    logits: Tensor | None,
    nvec: Sequence[int] | Layout,
    mask: Tensor | None,
    names: Names,
    options: Mapping[str, Any],
) -> tuple[Layout, Any]:
    """Build independent choices of ``kind``, batch shape ``[*B, k]``, from packed logits or probs.

    Shapes: logits (or ``options["probs"]``) ``[*B, sum(nvec)]``, mask flat or padded.
    """
    rest = dict(options)
    packed = only_scores(logits, rest.pop("probs", None), names)
    check_is_mask(mask, names)
    layout = nvec if isinstance(nvec, Layout) else Layout.named("nvec", nvec).to(packed.device)
    padded, mask = layout.pad_logits(packed, mask, names)
    name = "probs" if logits is None else "logits"
    return layout, kind(mask=mask, names=names, **{name: padded}, **rest)
