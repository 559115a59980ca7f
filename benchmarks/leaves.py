"""Leaves in plain PyTorch: what each kind of action costs without a head and without keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.reference import choice, masked_log_probs, normal, positive

Batch = dict[str, Tensor]


def gumbel_argmax(log_probs: Tensor) -> Tensor:
    return (log_probs - torch.empty_like(log_probs).exponential_().log()).argmax(-1)


def choice_entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0)).sum(-1)


def choice_kl(old: Tensor, new: Tensor) -> Tensor:
    difference = (old - new).masked_fill(old == -torch.inf, 0)
    return (old.exp() * difference).sum(-1)


def taken(log_probs: Tensor, index: Tensor) -> Tensor:
    return log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


class Leaf(ABC):
    """One action with the key `key`; `scores` is whatever the other methods need."""

    def __init__(self, key: str) -> None:
        self.key = key

    @abstractmethod
    def stored(self, batch: Batch) -> Any:
        """Return the scores from the parameters in the batch."""

    def scores(self, batch: Batch) -> Any:
        """Return the scores under the weights as they are."""
        return self.stored(batch)

    @abstractmethod
    def act(self, scores: Any) -> Tensor: ...

    @abstractmethod
    def log_prob(self, scores: Any, action: Tensor) -> Tensor: ...

    @abstractmethod
    def entropy(self, scores: Any) -> Tensor: ...

    @abstractmethod
    def kl(self, old: Any, new: Any) -> Tensor: ...

    def both(self, scores: Any, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-prob and entropy."""
        return self.log_prob(scores, action), self.entropy(scores)


class Choice(Leaf):
    """A masked choice."""

    def stored(self, batch: Batch) -> Tensor:
        return masked_log_probs(batch[self.key + "_logits"], batch[self.key + "_mask"])

    act = staticmethod(gumbel_argmax)
    both = staticmethod(choice)
    log_prob = staticmethod(taken)
    entropy = staticmethod(choice_entropy)
    kl = staticmethod(choice_kl)


class After(Choice):
    """A masked choice whose logits a network computes from the features and earlier choices."""

    def __init__(self, key: str, parents: Sequence[str], net: Callable[..., Tensor]) -> None:
        super().__init__(key)
        self.parents, self.net = parents, net

    def scores(self, batch: Batch) -> Tensor:
        logits = self.net(batch["hidden"], *(batch[parent] for parent in self.parents))
        return self.stored({**batch, self.key + "_logits": logits})


class AfterNet(nn.Module):
    """Logits from the features and an embedding of each parent's choice."""

    def __init__(self, embeddings: Sequence[nn.Module], hidden: nn.Module, out: nn.Module) -> None:
        super().__init__()
        self.embeddings, self.hidden, self.out = nn.ModuleList(embeddings), hidden, out

    def forward(self, features: Tensor, *actions: Tensor) -> Tensor:
        embedded = [e(a) for e, a in zip(self.embeddings, actions, strict=True)]
        return self.out(torch.tanh(self.hidden(torch.cat([features, *embedded], -1))))


class Listed(Leaf):
    """A choice out of very many, whose legal ones are listed, padded with -1."""

    def stored(self, batch: Batch) -> tuple[Tensor, Tensor]:
        legal = batch[self.key + "_legal"]
        return masked_log_probs(batch[self.key + "_logits"], legal >= 0), legal

    def act(self, scores: tuple[Tensor, Tensor]) -> Tensor:
        return taken(scores[1], gumbel_argmax(scores[0]))

    def log_prob(self, scores: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        return taken(scores[0], (scores[1] == action.unsqueeze(-1)).long().argmax(-1))

    def entropy(self, scores: tuple[Tensor, Tensor]) -> Tensor:
        return choice_entropy(scores[0])

    def kl(self, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
        return choice_kl(old[0], new[0])


class Choices(Leaf):
    """Several masked choices, one dimension after the other."""

    def __init__(self, key: str, nvec: Sequence[int]) -> None:
        super().__init__(key)
        self.nvec = list(nvec)

    def stored(self, batch: Batch) -> list[Tensor]:
        logits = batch[self.key + "_logits"].split(self.nvec, -1)
        masks = batch[self.key + "_mask"].split(self.nvec, -1)
        return [masked_log_probs(z, mask) for z, mask in zip(logits, masks, strict=True)]

    def act(self, scores: list[Tensor]) -> Tensor:
        return torch.stack([gumbel_argmax(dim) for dim in scores], -1)

    def log_prob(self, scores: list[Tensor], action: Tensor) -> Tensor:
        return sum_of(map(taken, scores, action.unbind(-1)))

    def entropy(self, scores: list[Tensor]) -> Tensor:
        return sum_of(map(choice_entropy, scores))

    def kl(self, old: list[Tensor], new: list[Tensor]) -> Tensor:
        return sum_of(map(choice_kl, old, new))


class Normal(Leaf):
    """Independent normals."""

    def stored(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return batch[self.key + "_loc"], positive(batch[self.key + "_scale"])

    def act(self, scores: tuple[Tensor, Tensor]) -> Tensor:
        return scores[0] + scores[1] * torch.randn_like(scores[0])

    def log_prob(self, scores: tuple[Tensor, Tensor], action: Tensor) -> Tensor:
        return normal(*scores, action)[0]

    def entropy(self, scores: tuple[Tensor, Tensor]) -> Tensor:
        return normal(*scores, scores[0])[1]

    def both(self, scores: tuple[Tensor, Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        return normal(*scores, action)

    def kl(self, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
        ratio = (old[1] / new[1]).square()
        return 0.5 * (ratio + ((old[0] - new[0]) / new[1]).square() - 1 - ratio.log()).sum(-1)
