"""Replacements for operations on whole tensors."""

import pytest
import torch
from torch.nn import functional

from paceline.model.tensor_parallel.operations import attend, drop_out, look_up


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_dropout_of_a_part_is_the_part_of_dropout(order, dim):
    whole = torch.randn(4, 6, 8).permute(order).contiguous().permute([order.index(d) for d in range(3)])
    torch.manual_seed(1)
    expected = functional.dropout(whole, 0.3)
    after = torch.get_rng_state()
    length = whole.shape[dim]
    for start in (0, length // 2):
        torch.manual_seed(1)
        part = whole.narrow(dim, start, length // 2)
        found = drop_out(part, 0.3, True, order, dim, 1, length, start, length // 2)
        assert torch.equal(found, expected.narrow(dim, start, length // 2))
        assert torch.equal(torch.get_rng_state(), after), "as much was drawn"


@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "added"])
def test_attention_of_some_heads_draws_as_that_of_all(kind):
    query, key, value = torch.randn(3, 2, 4, 5, 6, dtype=torch.float64)
    masks = {"boolean": torch.ones(5, 5).tril(1).bool(), "added": torch.randn(5, 5, dtype=torch.float64)}
    mask, is_causal = masks.get(kind), kind == "causal"
    torch.manual_seed(1)
    expected = functional.scaled_dot_product_attention(query, key, value, mask, 0.3, is_causal)
    for start in (0, 2):
        torch.manual_seed(1)
        heads = (each[:, start : start + 2] for each in (query, key, value))
        found = attend(*heads, mask, 0.3, is_causal, None, 1, 1, 4, start, 2)
        torch.testing.assert_close(found, expected[:, start : start + 2], rtol=0, atol=1e-14)


def test_what_ranks_look_up_adds_up_to_the_embedding_padding_included():
    weight = torch.randn(10, 3, requires_grad=True)
    indices = torch.tensor([[0, 3, 9], [4, 3, 5]])
    expected = functional.embedding(indices, weight, padding_idx=3)
    found = sum(look_up(weight[a:b], indices, 3, a) for a, b in [(0, 4), (4, 7), (7, 10)])
    assert torch.equal(found, expected)
    gradients = [torch.autograd.grad(each.square().sum(), weight)[0] for each in (found, expected)]
    assert torch.equal(*gradients)
