"""Head for several choices at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdheads.checks import check_options
from tdheads.distributions import MaskedJointCategorical, MaskedMultiCategorical
from tdheads.distributions.masked_multi_categorical import Layout
from tdheads.heads.base import LeafHead
from tdheads.keys import NestedKey


class MultiCategoricalHead(LeafHead):
    r"""``k`` choices of ``nvec`` options each, written as integers of shape ``[*B, k]``.

    Factored (``joint=False``): :math:`\log p(a) = \sum_d \log p_d(a_d)`, logits
    ``[*B, sum(nvec)]``, mask flat ``[*B, sum(nvec)]`` or padded ``[*B, k, max(nvec)]``. Joint
    (``joint=True``): one categorical over the product, logits ``[*B, prod(nvec)]``, mask
    ``[*B, *nvec]``. Which of the two is stated, never guessed from a shape.

    Args:
        action_key: the leaf key ``K``.
        nvec: number of options of each dimension.
        joint: one choice among all combinations instead of independent dimensions.
        logits, mask, on_empty, dtype, leaf: as in :class:`~tdheads.CategoricalHead`.

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
        *,
        logits: NestedKey | None = None,
        mask: NestedKey | bool | None = None,
        on_empty: str = "error",
        dtype: torch.dtype = torch.int64,
        **leaf: Any,
    ) -> None:
        nvec = tuple(int(n) for n in nvec)
        if not nvec or min(nvec) < 1:
            raise ValueError(
                f"{action_key!r}: expected the number of options of each dimension, got nvec={nvec}"
            )
        check_options("on_empty", on_empty, ("error", "neutral"))
        super().__init__(
            action_key,
            {"logits": [math.prod(nvec) if joint else sum(nvec)]},
            param_keys={"logits": logits},
            mask=mask,
            dtype=dtype,
            **leaf,
        )
        self.nvec = nvec
        self.joint = joint
        self.on_empty = on_empty
        self.layout = None if joint else Layout(nvec)

    @property
    def mask_shapes(self) -> tuple[torch.Size, ...]:
        """One entry per combination if joint, else one per option: flat or padded."""
        if self.joint:
            return (torch.Size(self.nvec),)
        return torch.Size([sum(self.nvec)]), torch.Size([len(self.nvec), max(self.nvec)])

    def distribution(
        self, *, mask: Tensor | None, logits: Tensor
    ) -> MaskedMultiCategorical | MaskedJointCategorical:
        """Build the factored or the joint distribution."""
        options: dict[str, Any] = {
            "on_empty": self.on_empty,
            "names": self.names,
            "validate_args": self.validate,
        }
        if self.layout is None:
            return MaskedJointCategorical(logits, self.nvec, mask, **options)
        return MaskedMultiCategorical(logits, self.layout, mask, **options)
