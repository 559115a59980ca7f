"""Variable-length choices: padding counts nothing, and all sequences have probability 1."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tdheads import CategoricalHead, CompositeHead, SequenceHead

B, ITEMS, LENGTH, FEATURES = 3, 3, 4, 6


def build(repeat: bool = True, **kwargs: bool) -> tuple[SequenceHead, TensorDict]:
    head = SequenceHead(
        "items", ITEMS, LENGTH, repeat=repeat, num_features=FEATURES, **kwargs
    ).double()
    nn.init.normal_(head.parameter_modules[0].module.core.out.weight)
    layer = head.projection(FEATURES, gain=1.0).double()
    return head, layer(TensorDict({"hidden": torch.randn(B, FEATURES).double()}, [B]))


def sequences(repeat: bool) -> list[tuple[int, ...]]:
    """All sequences as they are written: items, then zeros."""
    return [
        items + (0,) * (LENGTH - k)
        for k in range(LENGTH + 1)
        for items in itertools.product(range(1, ITEMS + 1), repeat=k)
        if repeat or len(set(items)) == len(items)
    ]


def as_leaves(sequence: tuple[int, ...]) -> TensorDict:
    return TensorDict({f"items_{t}": torch.full((B,), a) for t, a in enumerate(sequence)}, [B])


@pytest.mark.parametrize("repeat", [True, False])
def test_all_sequences_together_have_probability_one(repeat: bool) -> None:
    head, td = build(repeat)
    dist = head.get_dist(td)
    probs = [sum(dist.log_prob(as_leaves(s)).values()).exp() for s in sequences(repeat)]
    torch.testing.assert_close(sum(probs), torch.ones(B, dtype=torch.float64))
    if not repeat:
        twice = dist.log_prob(as_leaves((2, 2, 0, 0)))
        assert (twice["items_1_log_prob"] == -math.inf).all()


@pytest.mark.parametrize("repeat", [True, False])
def test_exact_entropy_is_that_of_the_joint(repeat: bool) -> None:
    head, td = build(repeat, enumerate_parents=True)
    dist = head.get_dist(td)
    probs = torch.stack(
        [sum(dist.log_prob(as_leaves(s)).values()).exp() for s in sequences(repeat)]
    )
    expected = -torch.special.xlogy(probs, probs).sum(0)
    torch.testing.assert_close(sum(dist.entropy().values()), expected)


def test_what_is_written_is_padded_and_padding_counts_nothing() -> None:
    head, td = build()
    many = td.expand(500, B).reshape(-1)
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = head(many.clone())
    items = drawn["items"]
    assert items.shape == torch.Size([500 * B, LENGTH])
    stopped = (items == 0).long().cummax(-1).values.bool()
    assert (items[stopped] == 0).all()
    assert len({tuple(row) for row in items.tolist()}) > 20
    for step in range(1, LENGTH):
        over = stopped[:, step - 1]
        assert (drawn[f"items_{step}_log_prob"][over] == 0).all()
        assert (drawn[f"items_{step}"] == items[:, step]).all()
    # gradient of padding: a row that stops at once moves the first leaf only
    stop = td.clone().update(as_leaves((0, 0, 0, 0)))
    score = sum(head.get_dist(stop).log_prob(stop).values()).sum()
    grads = torch.autograd.grad(score, list(head.parameters()), allow_unused=True)
    assert all(grad is None or (grad == 0).all() for grad in grads)


def test_all_steps_share_their_weights() -> None:
    head, _ = build()
    assert sum(p.numel() for p in head.parameters()) == (
        4 * 16 + (FEATURES + 32 + 1) * FEATURES + (FEATURES + 1) * 4
    )


@pytest.mark.parametrize(("n", "length"), [(None, 2), (0, 2), (3, None), (3, 0)])
def test_bad_arguments(n: int | None, length: int | None) -> None:
    with pytest.raises(ValueError, match=r"'items': expected the number of (items|steps)"):
        SequenceHead("items", n, length)


def test_a_sequence_inside_a_composite_is_written_as_a_whole_too() -> None:
    sequence = SequenceHead("items", ITEMS, LENGTH, num_features=FEATURES)
    head = CompositeHead(CategoricalHead("kind", 2), sequence, num_features=FEATURES)
    td = head.projection(FEATURES)(TensorDict({"hidden": torch.randn(B, FEATURES)}, [B]))
    drawn = head(td)
    assert drawn["items"].shape == torch.Size([B, LENGTH])
    assert set(head.out_keys) <= set(drawn.keys(True, True))
