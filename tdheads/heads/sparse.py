"""Head for one choice out of very many, of which few are legal."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdheads.distributions import SparseCategorical
from tdheads.heads.choice import ChoiceHead, check_count, check_holds
from tdheads.heads.embedding import ChoiceEmbedding
from tdheads.heads.projection import check_features
from tdheads.keys import NestedKey, as_key, suffixed

LEGAL = "_legal"


class SparseCategoricalHead(ChoiceHead):
    r"""One choice out of ``n``, of which the legal ones are listed, written as an integer ``[*B]``.

    .. math:: z_j = w_{legal_j} \cdot h + b_{legal_j}

    Reads the list ``K_legal`` ``[*B, max_legal]`` (each legal choice once, padded with -1) and
    ``K_logits`` ``[*B, max_legal]``; writes ``K`` and ``K_log_prob`` ``[*B]``. Its ``projection``
    computes the logits of the listed choices only, from the rows of the last layer that they pick:
    everything equals a :class:`~tdheads.CategoricalHead` with the mask, at the cost of the list.

    Args:
        action_key: the leaf key ``K``.
        n: number of choices.
        max_legal: length of the list.
        legal: key of the list, if it is not ``K_legal``;
            :func:`~tdheads.distributions.legal_index` makes one from a mask.
        choice: ``logits``, ``on_empty``, ``dtype``, ``validate``, ... as in
            :class:`~tdheads.heads.choice.ChoiceHead`.

    Raises:
        KeyError: for missing logits or a missing list.
        ValueError: for a wrong shape, ``nan`` logits, a row without a legal choice, a choice that
            is listed twice.

    Source: see :class:`~tdheads.distributions.SparseCategorical`.

    Example:
        >>> from tensordict import TensorDict
        >>> head = SparseCategoricalHead("move", n=29275, max_legal=3)
        >>> td = TensorDict({"hidden": torch.randn(1, 8)}, [1])
        >>> td["move_legal"] = torch.tensor([[5, 17, -1]])
        >>> bool(head(head.projection(8)(td))["move"] in torch.tensor([5, 17]))
        True
    """

    takes_mask_given = False
    takes_start = False
    fixed_keywords = ("param_keys", "param_shapes", "mask")
    keyword_hints = {**ChoiceHead.keyword_hints, "mask": "its legal choices are listed: legal=key"}

    def __init__(
        self,
        action_key: NestedKey = "action",
        n: int | None = None,
        max_legal: int | None = None,
        *,
        legal: NestedKey | None = None,
        **choice: Any,
    ) -> None:
        action_key = as_key(action_key, "action_key")
        count = check_count(action_key, n, "choices")
        width = check_count(action_key, max_legal, "listed choices", "max_legal")
        legal = suffixed(action_key, LEGAL) if legal is None else as_key(legal, "legal")
        super().__init__(action_key, width, mask=legal, **choice)
        check_holds(self.action_key, self.dtype, count - 1)
        self.n, self.max_legal = count, width

    @property
    def mask_fill(self) -> Tensor:
        """A list that is legal in every row."""
        index = torch.arange(self.max_legal)
        return index.masked_fill(index >= self.n, -1)

    def all_actions(self) -> Tensor:
        """Return 0 to n - 1."""
        return torch.arange(self.n).to(self.dtype)

    @property
    def num_choices(self) -> int:
        """The number of choices ``n``."""
        return self.n

    def embedding(self, width: int) -> nn.Module:
        """Return one vector per choice."""
        return ChoiceEmbedding(self.n, width)

    def distribution(self, *, mask: Tensor, logits: Tensor) -> SparseCategorical:
        """Build the sparse categorical."""
        return SparseCategorical(logits, mask, self.n, **self.options)

    def projection(
        self, num_features: int, in_key: NestedKey = "hidden", gain: float = 0.01
    ) -> TensorDictModule:
        """Return the layer that computes the logits of the listed choices only."""
        check_features(num_features, gain)
        layer = GatheredLinear(num_features, self.n, gain)
        assert self.mask_key is not None
        in_keys = [as_key(in_key, "in_key"), self.mask_key]
        return TensorDictModule(layer, in_keys=in_keys, out_keys=[self.param_keys["logits"]])


class GatheredLinear(nn.Module):
    """The outputs of a linear layer that an index picks.

    Shapes: features ``[*B, num_features]``, index ``[*B, M]`` -> ``[*B, M]``; what stands at -1 is
    the output 0, which is not used.

    Example:
        >>> layer = GatheredLinear(4, 1000)
        >>> x, index = torch.randn(2, 4), torch.tensor([[3, 999], [0, -1]])
        >>> torch.allclose(layer(x, index)[0, 1], x[0] @ layer.weight[999] + layer.bias[999])
        True
    """

    def __init__(self, num_features: int, n: int, gain: float = 0.01) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, num_features))
        self.bias = nn.Parameter(torch.zeros(n))
        nn.init.orthogonal_(self.weight, gain)

    def forward(self, features: Tensor, index: Tensor) -> Tensor:
        """Multiply the picked rows."""
        picked = index.long().clamp_min(0)
        rows = nn.functional.embedding(picked, self.weight)
        bias = nn.functional.embedding(picked, self.bias.unsqueeze(-1)).squeeze(-1)
        return (rows @ features.unsqueeze(-1)).squeeze(-1) + bias
