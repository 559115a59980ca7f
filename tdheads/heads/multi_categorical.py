"""Head for several choices at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from tdheads.arguments import check_flag
from tdheads.distributions import MaskedJointCategorical, MaskedMultiCategorical
from tdheads.distributions.layout import Layout
from tdheads.heads.choice import ChoiceHead, check_holds
from tdheads.heads.embedding import PackedEmbedding
from tdheads.keys import NestedKey


class MultiCategoricalHead(ChoiceHead):
    r"""``k`` choices of ``nvec`` options each, written as integers of shape ``[*B, k]``.

    Factored (``joint=False``): :math:`\log p(a) = \sum_d \log p_d(a_d)`, logits
    ``[*B, sum(nvec)]``, mask flat ``[*B, sum(nvec)]`` or padded ``[*B, k, max(nvec)]``. Joint
    (``joint=True``): one categorical over the product, logits ``[*B, prod(nvec)]``, mask
    ``[*B, *nvec]``. Which of the two is stated, never guessed from a shape.

    Args:
        action_key: the leaf key ``K``.
        nvec: number of options of each dimension.
        joint: one choice among all combinations instead of independent dimensions.
        choice: ``logits``, ``mask``, ``on_empty``, ``dtype``, ``validate``, ... as in
            :class:`~tdheads.heads.choice.ChoiceHead`.

    Raises:
        KeyError: for missing logits or a missing mask.
        ValueError: for a wrong shape, ``nan`` logits, a row without a legal choice.

    Source: see :class:`~tdheads.distributions.MaskedMultiCategorical`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = MultiCategoricalHead("action", nvec=[3, 2], mask=True)
        >>> td = TensorDict({"action_logits": torch.zeros(1, 5)}, [1])
        >>> td["action_mask"] = torch.tensor([[0, 0, 1, 0, 1]])
        >>> head(td)["action"]
        tensor([[2, 1]])
    """

    def __init__(
        self,
        action_key: NestedKey = "action",
        nvec: Sequence[int] = (),
        joint: bool = False,
        **choice: Any,
    ) -> None:
        check_flag("joint", joint)
        layout = Layout.named(action_key, nvec)
        super().__init__(action_key, math.prod(layout.nvec) if joint else layout.size, **choice)
        self.nvec = layout.nvec
        self.joint = joint
        self.layout = layout
        self._check_allowed()
        check_holds(self.action_key, self.dtype, self._last(max(layout.nvec)))

    @property
    def mask_shapes(self) -> tuple[torch.Size, ...]:
        """One entry per combination if joint, else one per option: flat or padded."""
        if self.joint:
            return (torch.Size(self.nvec),)
        return self.layout.mask_shapes

    @property
    def event_shape(self) -> torch.Size:
        """One entry per dimension."""
        return torch.Size([len(self.nvec)])

    def all_actions(self) -> Tensor | None:
        """Return every combination of the options, if they are the same for all agents."""
        if not self.same_start:
            return None
        options = [torch.arange(n) for n in self.nvec]
        first = 0 if self.start is None else self.start.first
        return (torch.cartesian_prod(*options).view(-1, len(self.nvec)) + first).to(self.dtype)

    def embedding(self, width: int) -> nn.Module:
        """Return one vector per option, summed over the dimensions."""
        return PackedEmbedding(self.nvec, width, self.start)

    def distribution(self, *, mask: Tensor | None, logits: Tensor) -> Distribution:
        """Build the factored or the joint distribution."""
        batch = logits.shape[:-1]
        if self.joint:
            mask = self._existing(mask, batch)
            return self._from_start(MaskedJointCategorical(logits, self.nvec, mask, **self.options))
        padded = self.layout.inside.shape
        if self.allowed is not None and mask is not None and mask.shape == batch + padded:
            mask = self.layout.pack(mask)
        mask = self._existing(mask, batch)
        return self._from_start(MaskedMultiCategorical(logits, self.layout, mask, **self.options))
