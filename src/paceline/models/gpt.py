"""GPT with shapes only (meta tensors): a task to simulate on any number of devices.

The shapes are from GPT-2 and GPT-3, as in the papers on Megatron-LM: learned position embeddings, norms before
attention and MLP, biases, and an inner width of 4 h. The number of parameters with `layers` L, `hidden` h,
`vocabulary` V and `sequence` s: 12 L h^2 (1 + 13/(12h) + (V + s)/(12 L h)), plus 2h of the last norm, plus V h if the
head is not tied.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from paceline.errors import ConfigurationError
from paceline.task.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer


def GPT(  # noqa: N802
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    vocabulary: int,
    batch_size: int,
    *,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    master_dtype: torch.dtype | None = None,
    fused_attention: bool = True,
    optimizer: Callable[[Any], Optimizer] | None = None,
) -> Task:
    """Return a task with shapes only, for `pl.Simulated(math="none")`. A step uses `batch_size` sequences.

    With `tied` the head shares the embedding's weights, as in the published numbers of parameters. By default it does
    not: the two are in the first and the last stage of a pipeline, which would have to sum their gradients each step.
    `dtype` is the dtype of parameters and activations, and determines the size of messages: use torch.bfloat16 for the
    sizes of 16-bit training, and `master_dtype` torch.float32 for a master copy and optimizer state of 32 bits. With
    `fused_attention` attention is one operation, as in FlashAttention. Otherwise each head computes a matrix of all
    pairs of tokens, which takes memory and time. `optimizer` is the argument of `pl.Task`. If None, Adam is used.
    """
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": sequence}
    for name, value in (sizes | {"vocabulary": vocabulary, "batch_size": batch_size}).items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigurationError(name, "must be a whole number of at least 1", value)
    if hidden % heads:
        remedy = f"use a multiple of {heads}, or other heads"
        raise ConfigurationError("hidden", f"must be a multiple of the {heads} heads", hidden, remedy)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        remedy = "write torch.bfloat16 or torch.float32"
        raise ConfigurationError("dtype", "must be a floating-point dtype of torch", dtype, remedy)
    tokens = torch.zeros(1, 1, dtype=torch.int64).expand(batch_size, sequence)  # the memory of one number
    return Task(
        model=_model(
            layers, hidden, heads, sequence, vocabulary, tied=tied, fused=fused_attention, dtype=dtype
        ),
        data=(tokens, tokens),
        loss=_loss,
        optimizer=optimizer or partial(torch.optim.Adam, lr=1e-4),
        batch_size=batch_size,
        master_dtype=master_dtype,
    )


def _model(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    vocabulary: int,
    *,
    tied: bool,
    fused: bool,
    dtype: torch.dtype,
) -> nn.Sequential:
    with torch.device("meta"):
        block = _Block(hidden, hidden // heads, fused=fused)
        embedding, head = _Embedding(vocabulary, sequence, hidden), nn.Linear(hidden, vocabulary, bias=False)
        norm = nn.LayerNorm(hidden)
    if tied:
        head.weight = embedding.tokens.weight
    # Copying a block takes a tenth of the time of creating one.
    blocks = nn.Sequential(block, *(copy.deepcopy(block) for _ in range(layers - 1)))
    parts = OrderedDict[str, nn.Module](embedding=embedding, blocks=blocks, norm=norm, head=head)
    return nn.Sequential(parts).to(dtype)


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of the next tokens, over all positions."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


class _Embedding(nn.Module):
    """Embedding of tokens and positions."""

    def __init__(self, vocabulary: int, sequence: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.places = nn.Embedding(sequence, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        made: Tensor = self.tokens(tokens) + self.places(places)
        return made


class _Attention(nn.Module):
    """Causal attention. The number of heads follows from the weights, because a rank may have some heads only."""

    def __init__(self, hidden: int, head_size: int, *, fused: bool) -> None:
        super().__init__()
        self.head_size = head_size
        self.fused = fused
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            made.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for made in (self.query(x), self.key(x), self.value(x))
        )
        if self.fused:
            attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_size)
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            attended = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        made: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return made


class _Block(nn.Module):
    """Attention and MLP, each with a norm before it and a residual connection."""

    def __init__(self, hidden: int, head_size: int, *, fused: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = _Attention(hidden, head_size, fused=fused)
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        made: Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return made
