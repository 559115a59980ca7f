"""A list of legal choices gives what the dense mask gives."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import kl_divergence

from tdheads import (
    CategoricalHead,
    ClipPPOLoss,
    CompositeHead,
    MaskedCategorical,
    NormalHead,
    SparseCategorical,
    SparseCategoricalHead,
    make_actor,
)
from tdheads.distributions import legal_index
from tests.batches import TERMS
from tests.cases import FEATURES, critic

B, N, M = 5, 101, 17


def setting(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Dense logits, dense mask, and the list in a shuffled order."""
    logits = torch.randn(B, N, dtype=dtype)
    mask = torch.rand(B, N) < 0.1
    mask[:, 40] = True
    index = legal_index(mask, M)[:, torch.randperm(M)]
    return logits, mask, index


def at(logits: Tensor, index: Tensor) -> Tensor:
    return logits.gather(-1, index.clamp_min(0))


def test_legal_index_lists_every_legal_choice_once() -> None:
    for shape in ((B, N), (2, 3, N), (N,), (0, N)):
        mask = torch.rand(shape) < 0.1
        index = legal_index(mask, 31)
        again = torch.zeros(shape, dtype=torch.int64)
        again.scatter_add_(-1, index.clamp_min(0), (index >= 0).long())
        assert (again == mask.long()).all()
    with pytest.raises(ValueError, match="a row allows 5 choices, more than max_legal=4"):
        legal_index(torch.ones(1, 5), 4)


def test_log_prob_entropy_mode_and_kl_equal_the_dense_mask() -> None:
    logits, mask, index = setting()
    sparse, dense = SparseCategorical(at(logits, index), index, N), MaskedCategorical(logits, mask)
    values = torch.arange(N).unsqueeze(-1).expand(N, B)
    torch.testing.assert_close(sparse.log_prob(values), dense.log_prob(values))
    torch.testing.assert_close(sparse.entropy(), dense.entropy())
    assert (sparse.mode == dense.mode).all()
    other = torch.randn(B, N, dtype=torch.float64)
    reorder = index.flip(-1)
    expected = kl_divergence(dense, MaskedCategorical(other, mask))
    for again in (index, index.clone(), reorder):
        q = SparseCategorical(at(other, again), again, N)
        torch.testing.assert_close(kl_divergence(sparse, q), expected)
    fewer = index.clone()
    fewer[index == 40] = -1
    assert (kl_divergence(sparse, SparseCategorical(at(other, fewer), fewer, N)) == math.inf).all()


def test_gradients_equal_the_dense_mask() -> None:
    logits, mask, index = setting()
    other = torch.randn(B, N, dtype=torch.float64)
    value = MaskedCategorical(logits, mask).sample()
    grads = []
    for sparse in (True, False):
        z = logits.clone().requires_grad_()
        if sparse:
            p: torch.distributions.Distribution = SparseCategorical(at(z, index), index, N)
            q: torch.distributions.Distribution = SparseCategorical(
                at(other, index.flip(-1)), index.flip(-1), N
            )
        else:
            p, q = MaskedCategorical(z, mask), MaskedCategorical(other, mask)
        total = p.log_prob(value) + p.entropy() + kl_divergence(p, q) + kl_divergence(q, p)
        grads.append(torch.autograd.grad(total.sum(), z)[0])
    torch.testing.assert_close(*grads)


def test_draws_are_listed_and_follow_the_probabilities() -> None:
    """Chi-square; a right sampler fails this once in 10,000 seeds per row."""
    logits, mask, index = setting()
    draws = 20_000
    sample = SparseCategorical(at(logits, index), index, N).sample((draws,))
    probs = MaskedCategorical(logits, mask).probs
    for row in range(B):
        counts = torch.bincount(sample[:, row], minlength=N)
        assert (counts[~mask[row]] == 0).all()
        expected = probs[row][mask[row]] * draws
        chi = ((counts[mask[row]] - expected).square() / expected).sum().item()
        bins = len(expected) - 1
        assert chi <= bins * (1 - 2 / (9 * bins) + 3.719 * (2 / (9 * bins)) ** 0.5) ** 3


def test_neutral_rows_take_choice_0() -> None:
    index = torch.tensor([[-1, -1], [3, -1]])
    logits = torch.randn(2, 2, requires_grad=True)
    dist = SparseCategorical(logits, index, N, on_empty="neutral")
    assert dist.sample().tolist() == [0, 3]
    assert dist.log_prob(torch.tensor([0, 3])).tolist() == [0, 0]
    assert dist.log_prob(torch.tensor([5, 3])).tolist() == [-math.inf, 0]
    dist.entropy().sum().backward()
    assert logits.grad is not None
    assert (logits.grad == 0).all()
    with pytest.raises(ValueError, match="no legal choice in row 0"):
        SparseCategorical(logits, index, N)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([[3, 3]], "a choice is listed twice in row 0"),
        ([[3, N]], "expected -1 to 100, got others in row 0"),
        ([[3, -2]], "expected -1 to 100"),
        ([[3, 4, 5]], r"'mask': expected shape \[1, 2\], got \[1, 3\]"),
    ],
)
def test_lists_that_are_wrong_are_refused(index: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SparseCategorical(torch.zeros(1, 2), torch.tensor(index), N)


def test_the_head_equals_a_dense_head_with_the_same_last_layer() -> None:
    _, mask, index = setting()
    body = TensorDictModule(nn.Linear(FEATURES, 16), ["observation"], ["hidden"])
    sparse = make_actor(body, SparseCategoricalHead("action", N, M), num_features=16, gain=1.0)
    dense = make_actor(body, CategoricalHead("action", N, mask=True), num_features=16)
    linear = dense[1].module[0]
    linear.weight.data, linear.bias.data = sparse[1].module.weight.data, sparse[1].module.bias.data
    td = TensorDict({"observation": torch.randn(B, FEATURES)}, [B])
    td["action_mask"], td["action_legal"] = mask, index
    with torch.no_grad():
        td = sparse(td)
    td["advantage"] = td["value_target"] = torch.randn(B, 1)
    td["action_log_prob"] -= 0.05
    td["collector", "mask"] = torch.tensor([1, 1, 0, 1, 1], dtype=torch.bool)
    td["action_legal"][2] = -77  # an invalid row may hold anything
    value = critic()
    outs, grads = [], []
    for actor, layer in ((sparse, sparse[1].module), (dense, linear)):
        loss = ClipPPOLoss(actor, value)
        loss.zero_grad()
        out = loss(td)
        sum(out[term] for term in TERMS).backward()
        outs.append(out)
        params = dict(loss.actor_network_params.named_parameters())
        grads.append({name.split(".")[-1]: p.grad for name, p in params.items() if "1" in name})
        assert layer is not None
    for key, figure in outs[1].items(True, True):
        torch.testing.assert_close(outs[0][key], figure, rtol=1e-4, atol=1e-6)
    for name, grad in grads[1].items():
        torch.testing.assert_close(grads[0][name], grad, rtol=1e-4, atol=1e-6)


def test_a_sparse_leaf_beside_others_keeps_its_own_projection() -> None:
    head = CompositeHead(
        CategoricalHead("kind", 3), SparseCategoricalHead("move", N, M), NormalHead("x", (2,))
    )
    layer = head.projection(16)
    _, _, index = setting()
    td = layer(TensorDict({"hidden": torch.randn(B, 16), "move_legal": index}, [B]))
    assert head(td)["move_log_prob"].shape == torch.Size([B])
    assert sum(p.numel() for p in layer.parameters()) == (3 + 4 + N) * 17


def test_lists_in_different_orders_agree_with_three_batch_dims() -> None:
    # as many rows in each dim as the list is long: a mix-up of dims would not be an error
    batch = (M, 2, M)
    gen = torch.Generator().manual_seed(5)
    logits, other = (torch.randn(*batch, N, generator=gen).double() for _ in range(2))
    mask = torch.rand(*batch, N, generator=gen) < 0.05
    mask[..., 40] = True
    index = legal_index(mask, M)
    # every row in an order of its own, padding in between
    mixed = index.gather(-1, torch.rand(*batch, M, generator=gen).argsort(-1))
    p = [SparseCategorical(at(logits, i), i, N) for i in (index, mixed)]
    q = [SparseCategorical(at(other, i), i, N) for i in (index, mixed)]
    log_p = logits.masked_fill(~mask, -math.inf).log_softmax(-1)
    log_q = other.masked_fill(~mask, -math.inf).log_softmax(-1)
    expected = torch.where(mask, log_p.exp() * (log_p - log_q), 0).sum(-1)
    values = torch.arange(N).view(N, 1, 1, 1).expand(N, *batch)
    for dist in p:
        torch.testing.assert_close(dist.log_prob(values), log_p.movedim(-1, 0))
        for second in q:
            torch.testing.assert_close(kl_divergence(dist, second), expected)
