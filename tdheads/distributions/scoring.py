"""Log-prob and entropy of categorical choices in one pass, with a backward pass written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdheads.checks import eager
from tdheads.distributions.layout import Layout
from tdheads.distributions.movable import Movable

#: numbers for which a backward pass in Python takes longer than torch's own steps
FEW = 2**13


def finite(log_probs: Tensor) -> Tensor:
    """Return log-probs that may be multiplied by their probabilities.

    ``-inf`` only ever meets probability 0; ``0 * -inf`` would be nan in value and in gradient.

    Example:
        >>> p = torch.tensor([1.0, 0.0])
        >>> p * finite(p.log())
        tensor([0., -0.])
    """
    return log_probs.clamp_min(torch.finfo(log_probs.dtype).min)


class Scores(Movable):
    r"""Log-probs of one categorical, or of several side by side: what scoring an action needs.

    .. math:: \frac{\partial \log p_a}{\partial z_i} = [i = a] - p_i, \quad
              \frac{\partial H}{\partial z_i} = -p_i\, (\log p_i + H)

    The gradient of both goes straight to ``logits``, in a third of the passes over ``[*B, n]`` that
    the steps from there to the log-prob would take, and with less to keep for them. An illegal
    choice, whose log-prob is ``-inf``, gets none. Up to ``FEW`` numbers torch's own steps
    are used, which are the quicker ones then.

    Args:
        log_probs: normalised, ``-inf`` where illegal, ``[*B, n]``.
        logits: what they were computed from, ``[*B, n]``; ``None`` if it is not known.
        layout: where the choices of each block are, if there are several.

    Example:
        >>> logits = torch.zeros(1, 2, requires_grad=True)
        >>> log_prob = Scores(logits.log_softmax(-1), logits).log_prob(torch.tensor([[0]]))
        >>> torch.autograd.grad(log_prob.sum(), logits)
        (tensor([[ 0.5000, -0.5000]]),)
    """

    def __init__(
        self, log_probs: Tensor, logits: Tensor | None = None, layout: Layout | None = None
    ) -> None:
        self.log_probs, self.logits, self.layout = log_probs, logits, layout
        #: what came with a log-prob
        self._entropy: Tensor | None = None
        self._hand: bool | None = None

    def log_prob(self, index: Tensor) -> Tensor:
        """Log-prob of a choice in each block, ``[*S, *B, k]`` -> ``[*S, *B]``."""
        wide, log_probs = index.shape[:-1], self.log_probs
        if wide != log_probs.shape[:-1]:
            wide = torch.broadcast_shapes(wide, log_probs.shape[:-1])
            log_probs = log_probs.expand(*wide, log_probs.shape[-1])
            return _picked(log_probs, index.expand(*wide, index.shape[-1]))
        if not self._by_hand():
            return _picked(log_probs, index)
        log_prob, self._entropy = _score(self.logits, log_probs, index, self.layout)
        return log_prob

    def entropy(self) -> Tensor:
        """Entropy in nats, the sum over the blocks, ``[*B]``."""
        if not self._by_hand():
            return -(self.log_probs.exp() * finite(self.log_probs)).sum(-1)
        if self._entropy is None:
            self._entropy = _score(self.logits, self.log_probs, None, self.layout)[1]
        return self._entropy

    def _by_hand(self) -> bool:
        """Whether there is a gradient to write, it pays, and nothing traces it."""
        if self._hand is None:  # asked for the log-prob and for the entropy
            logits = self.logits
            graph = logits is not None and logits.requires_grad and torch.is_grad_enabled()
            self._hand = graph and eager() and self.log_probs.numel() > FEW
        return self._hand


def _picked(log_probs: Tensor, index: Tensor) -> Tensor:
    picked = log_probs.gather(-1, index)
    return picked.squeeze(-1) if index.shape[-1] == 1 else picked.sum(-1)


def _score(*args: Any) -> Any:
    return _Score.apply(*args)  # type: ignore[no-untyped-call]  # torch has no types here


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, log_probs: Tensor, index: Tensor | None, layout: Layout | None
    ) -> tuple[Tensor | None, Tensor]:
        probs = log_probs.exp()
        terms = finite(log_probs).mul_(probs)
        log_prob = None if index is None else _picked(log_probs, index)
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        # log_probs has a graph of its own, for a backward pass that is differentiated again
        ctx.save_for_backward(log_probs, probs, terms, index)
        return log_prob, terms.sum(-1).neg_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None) -> Any:
        log_probs, probs, terms, index = ctx.saved_tensors
        if torch.is_grad_enabled():
            probs = log_probs.exp()
            terms = finite(log_probs) * probs
        if grad is None and grad_entropy is None:
            return None, None, None, None
        weight: Tensor | None = None
        if grad is not None:
            picked = log_probs.gather(-1, index)
            grad = grad.unsqueeze(-1).expand_as(picked)
            weight = -grad
            grad = grad.masked_fill(picked == -torch.inf, 0)
        if grad_entropy is not None:
            grad_entropy = grad_entropy.unsqueeze(-1)
            # the entropy of each block is the negative sum of its terms
            blocks = terms.sum(-1, keepdim=True) if ctx.layout is None else ctx.layout.sums(terms)
            part = grad_entropy * blocks
            weight = part if weight is None else weight + part
        assert weight is not None
        out = probs * (weight if ctx.layout is None else ctx.layout.spread(weight))
        if grad_entropy is not None:
            out.addcmul_(terms, grad_entropy, value=-1)
        if grad is not None:
            out.scatter_add_(-1, index, grad)
        return out, None, None, None
