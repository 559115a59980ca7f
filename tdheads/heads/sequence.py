"""Head for up to L choices, one after the other."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdheads.arguments import check_flag
from tdheads.heads.categorical import CategoricalHead
from tdheads.heads.choice import check_count
from tdheads.heads.composite import CompositeHead
from tdheads.heads.dependence import EMBEDDING_WIDTH
from tdheads.heads.leaf_checks import STOP
from tdheads.heads.projection import check_features
from tdheads.keys import MASK, NestedKey, as_key, suffixed


class SequenceHead(CompositeHead):
    r"""Up to ``length`` items out of ``n``, picked one after the other; choice 0 stops.

    .. math:: \log p(a) = \sum_{t=1}^{T} \log p(a_t \mid a_{<t}), \quad
              T = \text{first } t \text{ with } a_t = 0, \text{ or } length

    A composite of the leaves ``K_0``, ``K_1``, ...: each is relevant only while nothing stopped
    before it, and its parameters depend on all items before it. Choice 0 is "stop", the items are 1
    to ``n``. A loss reads the leaves and their log-probs. Besides them it writes the whole sequence
    under ``K`` ``[*B, length]``, padded with 0; padding counts nothing in log-prob, entropy, KL and
    gradient.

    Args:
        action_key: the key ``K`` of the sequence.
        n: number of items.
        length: the most items that can be picked.
        repeat: whether an item may be picked twice.
        mask: ``None`` for none, ``True`` for ``K_mask``, or a key: ``[*B, n + 1]``, the same at
            each step; stopping has to be legal.
        in_key, num_features: features that the steps after the first read.
        enumerate_parents: exact entropy and KL, by enumerating all sequences.
        validate: whether to look at values.
        head: further keywords of :class:`~tdheads.CompositeHead`.

    Raises:
        ValueError: for no items or no steps, and what a composite raises.

    Source: Sutskever et al., "Sequence to Sequence Learning", https://arxiv.org/abs/1409.3215.

    Example:
        >>> from tensordict import TensorDict
        >>> head = SequenceHead("items", n=5, length=3, num_features=8)
        >>> td = head.projection(8)(TensorDict({"hidden": torch.randn(4, 8)}, [4]))
        >>> head(td)["items"].shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        action_key: NestedKey = "action",
        n: int | None = None,
        length: int | None = None,
        *,
        repeat: bool = True,
        mask: NestedKey | bool | None = None,
        in_key: NestedKey = "hidden",
        num_features: int = 64,
        enumerate_parents: bool = False,
        validate: bool = True,
        **head: Any,
    ) -> None:
        action_key = as_key(action_key, "action_key")
        check_flag("repeat", repeat)
        check_features(num_features)
        in_key = as_key(in_key, "in_key")
        items = check_count(action_key, n, "items")
        steps = check_count(action_key, length, "steps", "length")
        mask = suffixed(action_key, MASK) if mask is True else mask
        names = [suffixed(action_key, f"_{step}") for step in range(steps)]
        core = NextItem(items, num_features, repeat)
        leaves = [CategoricalHead(names[0], items + 1, mask=mask, validate=validate)]
        for step in range(1, steps):
            before = names[:step]
            module = TensorDictModule(
                Step(core), [in_key, *before], [suffixed(names[step], "_logits")]
            )
            leaf = CategoricalHead(
                names[step],
                items + 1,
                mask=mask,
                validate=validate,
                when={before[-1]: range(1, items + 1)},
                after=before,
                enumerate_parents=enumerate_parents,
                parameters=module,
            )
            leaves.append(leaf)
        super().__init__(*leaves, in_key=in_key, num_features=num_features, **head)
        self.sequences = {action_key: names}


class NextItem(nn.Module):
    """Logits of the next item from the features and the items picked so far.

    Shapes: features ``[*B, num_features]``, items ``[*B, t]`` -> ``[*B, n + 1]``.
    """

    def __init__(self, n: int, num_features: int, repeat: bool) -> None:
        super().__init__()
        self.repeat = repeat
        self.table = nn.Embedding(n + 1, EMBEDDING_WIDTH)
        self.hidden = nn.Linear(num_features + 2 * EMBEDDING_WIDTH, num_features)
        self.out = nn.Linear(num_features, n + 1)
        nn.init.orthogonal_(self.out.weight, 0.01)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor, items: Tensor) -> Tensor:
        """Read the set of all items so far, and the last one."""
        embedded = self.table(items)
        context = torch.cat([features, embedded.sum(-2), embedded[..., -1, :]], -1)
        logits = self.out(torch.tanh(self.hidden(context)))
        if self.repeat:
            return logits
        choices = torch.arange(logits.shape[-1], device=logits.device)
        taken = ((items.unsqueeze(-1) == choices) & (choices != STOP)).any(-2)
        return logits.masked_fill(taken, -torch.inf)


class Step(nn.Module):
    """One step of a sequence; all steps share their weights."""

    def __init__(self, core: NextItem) -> None:
        super().__init__()
        self.core = core

    def forward(self, features: Tensor, *items: Tensor) -> Tensor:
        """Stack the items so far."""
        return self.core(features, torch.stack(items, -1).long())
