"""Heads for one-hot actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdheads.distributions import MaskedMultiOneHot, MaskedOneHotCategorical
from tdheads.distributions.layout import Layout
from tdheads.distributions.masked_one_hot import check_gradient
from tdheads.heads.choice import ChoiceHead, check_count
from tdheads.keys import NestedKey


class OneHotCategoricalHead(ChoiceHead):
    r"""One choice out of ``n``, written as a one-hot vector of shape ``[*B, n]``.

    .. math:: p_i = m_i e^{z_i} / \sum_j m_j e^{z_j}

    Reads ``K_logits`` ``[*B, n]`` and, if it has a mask, ``K_mask`` ``[*B, n]``; writes ``K`` and
    ``K_log_prob`` ``[*B]``. A drawn action carries a straight-through gradient to the logits where
    gradients are enabled and its dtype is floating point; PPO has no use for it and detaches it.

    Args:
        action_key: the leaf key ``K``.
        n: number of choices.
        grad_method: ``"pass_through"`` (gradient of the probabilities) or ``"relaxed"`` (gradient
            of the Gumbel-softmax sample).
        temperature: of the Gumbel-softmax sample.
        dtype: dtype of the written action.
        choice: ``logits``, ``mask``, ``on_empty``, ``validate``, ... as in
            :class:`~tdheads.heads.choice.ChoiceHead`; a neutral row takes choice 0.

    Raises:
        KeyError: for missing logits or a missing mask.
        ValueError: for a wrong shape, ``nan`` logits, a row without a legal choice, a stored action
            that is not one-hot.

    Source: see :class:`~tdheads.distributions.MaskedOneHotCategorical`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = OneHotCategoricalHead("action", n=3, mask=True)
        >>> td = TensorDict({"action_logits": torch.tensor([[0.0, 9.0, 1.0]])}, [1])
        >>> td["action_mask"] = torch.tensor([[True, False, True]])
        >>> head(td)["action"]
        tensor([[0., 0., 1.]])
    """

    takes_start = False

    def __init__(
        self,
        action_key: NestedKey = "action",
        n: int | None = None,
        *,
        grad_method: str = "pass_through",
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
        **choice: Any,
    ) -> None:
        check_gradient(grad_method, temperature)
        count = check_count(action_key, n, "choices")
        super().__init__(action_key, count, dtype=dtype, **choice)
        self.n = count
        self.gradient: dict[str, Any] = {"grad_method": grad_method, "temperature": temperature}

    @property
    def event_shape(self) -> torch.Size:
        """One entry per choice."""
        return torch.Size([self.n])

    @property
    def num_choices(self) -> int:
        """The number of choices ``n``."""
        return self.n

    def raw_choice(self, action: Tensor) -> Tensor:
        """Return the position of the 1."""
        return action.detach().to(torch.int8).argmax(-1)

    @property
    def has_zero(self) -> bool:
        """An action has a 1."""
        return False

    def all_actions(self) -> Tensor:
        """Return every one-hot vector."""
        return torch.eye(self.n).to(self.dtype)

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> MaskedOneHotCategorical:
        """Build the masked one-hot categorical."""
        return MaskedOneHotCategorical(logits, mask, **self.gradient, **self.options)


class MultiOneHotHead(ChoiceHead):
    r"""``k`` choices of ``nvec`` options each, written as one-hots in a row ``[*B, sum(nvec)]``.

    .. math:: \log p(a) = \sum_d \log p_d(a_d)

    Reads ``K_logits`` ``[*B, sum(nvec)]`` and, if it has a mask, ``K_mask``, flat
    ``[*B, sum(nvec)]`` or padded ``[*B, k, max(nvec)]``; writes ``K`` and ``K_log_prob`` ``[*B]``.

    Args:
        action_key: the leaf key ``K``.
        nvec: number of options of each dimension.
        grad_method, temperature, dtype: as in :class:`OneHotCategoricalHead`.
        choice: as in :class:`OneHotCategoricalHead`.

    Raises:
        KeyError, ValueError: as :class:`OneHotCategoricalHead`.

    Source: see :class:`~tdheads.distributions.MaskedMultiOneHot`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = MultiOneHotHead("action", nvec=[2, 3])
        >>> td = TensorDict({"action_logits": torch.tensor([[0.0, 1.0, 2.0, 0.0, 0.0]])}, [1])
        >>> head(td)["action"]
        tensor([[0., 1., 1., 0., 0.]])
    """

    takes_start = False

    def __init__(
        self,
        action_key: NestedKey = "action",
        nvec: Sequence[int] = (),
        *,
        grad_method: str = "pass_through",
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
        **choice: Any,
    ) -> None:
        check_gradient(grad_method, temperature)
        layout = Layout.named(action_key, nvec)
        super().__init__(action_key, layout.size, dtype=dtype, **choice)
        self.layout = layout
        self.gradient: dict[str, Any] = {"grad_method": grad_method, "temperature": temperature}

    @property
    def mask_shapes(self) -> tuple[torch.Size, ...]:
        """One entry per option: flat or padded."""
        return self.layout.mask_shapes

    @property
    def event_shape(self) -> torch.Size:
        """One entry per option."""
        return torch.Size([self.layout.size])

    @property
    def has_zero(self) -> bool:
        """An action has a 1."""
        return False

    def all_actions(self) -> Tensor:
        """Return every combination of the options."""
        blocks = [torch.eye(n) for n in self.layout.nvec]
        rows = torch.cartesian_prod(*(torch.arange(n) for n in self.layout.nvec))
        picked = rows.view(-1, len(blocks)).unbind(-1)
        parts = [block[index] for block, index in zip(blocks, picked, strict=True)]
        return torch.cat(parts, -1).to(self.dtype)

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> MaskedMultiOneHot:
        """Build the distribution."""
        return MaskedMultiOneHot(logits, self.layout, mask, **self.gradient, **self.options)
