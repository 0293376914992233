"""The layers of a transformer, as shapes.

They have the parameters, the operations and the activations of published models. Two operations are simplified,
because devices execute each of them as one operation: an RMSNorm is a layer norm without bias, and a rotary
embedding is one product with a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes and kinds of the layers of a transformer."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_size: int
    ffn: int
    sequence: int
    vocabulary: int
    gated: bool = False
    norm: str = "layer"
    positions: str = "learned"
    bias: bool = True
    key_bias: bool | None = None
    """Whether queries, keys and values have a bias. None for the value of `bias`."""
    out_bias: bool | None = None
    """Whether the output of attention has a bias. None for the value of `bias`."""
    tied: bool = False
    causal: bool = True
    fused: bool = True
    """Whether attention is one operation."""

    def new_norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.hidden, bias=self.norm == "layer")


class Embedding(nn.Module):
    """Embedding of tokens, and of positions if they are learned."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        learned = sizes.positions == "learned"
        self.places = nn.Embedding(sizes.sequence, sizes.hidden) if learned else None

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.tokens(tokens)
        if self.places is None:
            return made
        places: Tensor = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return made + places


class Attention(nn.Module):
    """Attention. The number of heads follows from the weights, because a rank may have some heads only."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_size = sizes.head_size
        self.causal = sizes.causal
        self.fused = sizes.fused
        self.groups = sizes.heads // sizes.key_heads
        """Number of queries for each key."""
        self.rotary = sizes.positions == "rotary"
        bias = sizes.bias if sizes.key_bias is None else sizes.key_bias
        wide, narrow = sizes.heads * sizes.head_size, sizes.key_heads * sizes.head_size
        self.query = nn.Linear(sizes.hidden, wide, bias=bias)
        self.key = nn.Linear(sizes.hidden, narrow, bias=bias)
        self.value = nn.Linear(sizes.hidden, narrow, bias=bias)
        out_bias = sizes.bias if sizes.out_bias is None else sizes.out_bias
        self.out = nn.Linear(wide, sizes.hidden, bias=out_bias)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            made.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for made in (self.query(x), self.key(x), self.value(x))
        )
        if self.rotary:
            table = torch.ones(x.shape[1], self.head_size, dtype=x.dtype, device=x.device)
            query, key = query * table, key * table
        if self.fused:
            grouped = self.groups > 1
            attended = scaled_dot_product_attention(
                query, key, value, is_causal=self.causal, enable_gqa=grouped
            )
        else:
            attended = self._attended(query, key, value)
        made: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return made

    def _attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with a matrix of all pairs of tokens."""
        if self.groups > 1:
            key, value = (each.repeat_interleave(self.groups, dim=1) for each in (key, value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_size)
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return scores.softmax(-1) @ value


class Block(nn.Module):
    """Attention and MLP, each with a norm before it and a residual connection."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = sizes.new_norm()
        self.attention = Attention(sizes)
        self.norm = sizes.new_norm()
        self.gate = nn.Linear(sizes.hidden, sizes.ffn, bias=sizes.bias) if sizes.gated else None
        self.up = nn.Linear(sizes.hidden, sizes.ffn, bias=sizes.bias)
        self.down = nn.Linear(sizes.ffn, sizes.hidden, bias=sizes.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        made: Tensor = x + self.down(self._inner(self.norm(x)))
        return made

    def _inner(self, x: Tensor) -> Tensor:
        return gelu(self.up(x)) if self.gate is None else silu(self.gate(x)) * self.up(x)
