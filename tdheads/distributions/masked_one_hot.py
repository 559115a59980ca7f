"""One-hot actions over the legal choices of a mask, with a gradient through the sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from tdheads.arguments import check_number
from tdheads.checks import check_options, rows_where, show
from tdheads.distributions.choices import ChoiceDistribution, check_passed_on, kl_of_choices
from tdheads.distributions.draw import looks_first, score_draw
from tdheads.distributions.inputs import check_value_shape
from tdheads.distributions.masked_categorical import MaskedCategorical
from tdheads.keys import Names

GRAD_METHODS = ("pass_through", "relaxed")


class MaskedOneHotCategorical(ChoiceDistribution):
    r"""Categorical over the legal choices whose samples are one-hot vectors.

    .. math:: p_i = m_i e^{z_i} / \sum_j m_j e^{z_j}

    ``rsample`` gives an exact one-hot vector with a straight-through gradient: that of the
    probabilities (``"pass_through"``), or that of the Gumbel-softmax sample
    :math:`\mathrm{softmax}((\log p + g) / \tau)` whose largest entry is the sample
    (``"relaxed"``). Masked entries have value 0 and gradient 0.

    Args:
        logits: unnormalised log-probabilities, shape ``[*B, n]``.
        mask: legal choices, shape ``[*B, n]``, bool or 0/1 numbers; ``None`` allows all.
        grad_method: ``"pass_through"`` or ``"relaxed"``.
        temperature: of the Gumbel-softmax sample.
        options: ``probs``, ``on_empty``, ``names``, ``validate_args`` as in
            :class:`MaskedCategorical`.

    Values have shape ``[*B, n]``, with one 1 and zeros, in any dtype.

    Raises:
        ValueError: as :class:`MaskedCategorical`, and by ``log_prob`` for a value that is not
            one-hot.

    Source: Bengio et al., https://arxiv.org/abs/1308.3432 (pass-through); Jang et al.,
    https://arxiv.org/abs/1611.01144 (relaxed).

    Example:
        >>> mask = torch.tensor([[True, False, True]])
        >>> dist = MaskedOneHotCategorical(torch.zeros(1, 3), mask)
        >>> dist.mode
        tensor([[1, 0, 0]])
        >>> dist.log_prob(dist.mode).exp()
        tensor([0.5000])
    """

    has_enumerate_support = True
    has_rsample = True

    def __init__(
        self,
        logits: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        grad_method: str = "pass_through",
        temperature: float = 1.0,
        **options: Any,
    ) -> None:
        if grad_method not in GRAD_METHODS or not (type(temperature) is float and temperature > 0):
            check_gradient(grad_method, temperature)
        check_passed_on(type(self), options)
        self._gradient = grad_method, temperature
        base = MaskedCategorical(logits, mask, **options)
        self._set(base, base.batch_shape, torch.Size([base.num_events]))

    @property
    def mean(self) -> Tensor:
        """The probabilities."""
        return self.probs

    @property
    def support(self) -> constraints.Constraint:
        """One-hot vectors."""
        return constraints.one_hot

    @property
    def mode(self) -> Tensor:
        """Most probable legal choice, the first one on ties: exactly one 1, ``[*B, n]`` int64."""
        return self._one_hot(self.base.mode)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw one-hot vectors, ``[*sample_shape, *B, n]`` int64."""
        return self._one_hot(self.base.sample(sample_shape))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draw one-hot vectors with a straight-through gradient, in the dtype of the logits."""
        method, temperature = self._gradient
        shape = torch.Size(sample_shape) + self.logits.shape
        if method == "pass_through":
            hard, soft = self.base.sample(sample_shape), self.probs.expand(shape)
        else:
            scores = self.base.gumbel_scores(torch.Size(sample_shape))
            hard, soft = scores.argmax(-1), (scores / temperature).softmax(-1)
        # the bracket is exactly 0 in value: the sum is exactly one-hot
        return self._one_hot(hard).to(soft.dtype) + (soft - soft.detach())

    @looks_first
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of the one-hot ``value`` (``[*S, *B, n]``), shape ``[*S, *B]``."""
        check_value_shape(value, self.batch_shape + self.event_shape, self.names)
        if self.validates:
            check_one_hot(value, self.names)
        return self._score(value)

    def _score(self, value: Tensor) -> Tensor:
        """Log-probability of a one-hot that was drawn here: nothing is checked again."""
        return score_draw(self.base, value.detach().to(torch.int8).argmax(-1))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All one-hot vectors, legal or not, ``[n, *B, n]``."""
        return self._one_hot(self.base.enumerate_support(expand))

    def _one_hot(self, index: Tensor) -> Tensor:
        choices = torch.arange(self.base.num_events, device=index.device)
        return (index.unsqueeze(-1) == choices).long()


def check_gradient(grad_method: str, temperature: float) -> None:
    """Refuse a gradient that a draw cannot have.

    Example:
        >>> check_gradient("relaxed", 0.5)
    """
    check_options("grad_method", grad_method, GRAD_METHODS)
    check_number("temperature", temperature, lambda x: x > 0, "> 0")


def check_one_hot(value: Tensor, names: Names) -> None:
    """Refuse a value that is not zeros and exactly one 1 in its last dim."""
    ones = value == 1
    bad = ~((ones | (value == 0)).all(-1) & (ones.sum(-1) == 1))
    if bad.any():
        raise ValueError(
            f"{show(names.value)}: expected one-hot vectors, got {value[bad][0].tolist()} in"
            f" {rows_where(bad)}; store the action as it was drawn, or use a CategoricalHead for"
            " actions stored as integers"
        )


register_kl(MaskedOneHotCategorical, MaskedOneHotCategorical)(kl_of_choices)
