"""Transformers with shapes only (meta tensors): tasks to simulate and to predict on any number of devices.

By default the shapes are from GPT-2 and GPT-3, as in the papers on Megatron-LM: learned position embeddings, norms
before attention and MLP, biases, and an inner width of 4 h. The number of parameters with `layers` L, `hidden` h,
`vocabulary` V and `sequence` s: 12 L h^2 (1 + 13/(12h) + (V + s)/(12 L h)), plus 2h of the last norm, plus V h if the
head is not tied.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline.errors import ConfigurationError
from paceline.models.blocks import Block, Embedding, Sizes
from paceline.task.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer

NORMS = ("layer", "rms")
POSITIONS = ("learned", "rotary")
RECOMPUTE = {False: False, True: True, "none": False, "full": True}


def GPT(  # noqa: N802
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    vocabulary: int,
    batch_size: int,
    *,
    key_heads: int | None = None,
    head_size: int | None = None,
    ffn: int | None = None,
    gated: bool = False,
    norm: str = "layer",
    positions: str = "learned",
    bias: bool = True,
    key_bias: bool | None = None,
    out_bias: bool | None = None,
    tied: bool = False,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
    master_dtype: torch.dtype | None = None,
    gradient_dtype: torch.dtype | None = None,
    fused_attention: bool = True,
    recompute: bool | str = False,
    optimizer: Callable[[Any], Optimizer] | None = None,
) -> Task:
    """Return a task with shapes only, for predictions and `pl.Simulated(math="none")`.

    A step uses `batch_size` sequences. Pipelines get stages of equally many blocks where `layers` allows it, as in
    Megatron-LM; otherwise stages of about equal seconds.

    - `key_heads`: number of heads of keys and values (grouped-query attention). None for `heads`.
    - `head_size`: size of a head. None for `hidden` / `heads`.
    - `ffn`: inner width of the MLP. None for 4 x `hidden`. A `gated` MLP has two such layers, and multiplies their
      outputs.
    - `norm`: "layer" or "rms". `positions`: "learned" or "rotary".
    - `bias`: whether linear layers have a bias; `key_bias`: whether queries, keys and values have one; `out_bias`:
    whether the output of attention has one. None for the value of `bias`.
    - `tied`: whether the head shares the embedding's weights, as in the published numbers of parameters. By default
    the head has its own weights. Shared weights would be in the first and the last stage of a pipeline, which would
    have to sum their gradients in each step.
    - `causal`: whether a token attends to earlier tokens only.
    - `dtype`: dtype of parameters and activations. It determines the size of messages: use torch.bfloat16 for the sizes
      of 16-bit training. `master_dtype`: torch.float32 for a master copy and optimizer state of 32 bits.
      `gradient_dtype`: torch.float32 for gradients that are accumulated and summed in 32 bits, as in Megatron-LM.
    - `fused_attention`: attention is one operation, as in FlashAttention. Otherwise each head computes a matrix of all
      pairs of tokens, which takes memory and time.
    - `recompute`: "none" (False), or "full" (True): activations are computed again in the backward pass.
    - `optimizer`: see `pl.Task`. If None, Adam is used.
    """
    counts = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": sequence}
    counts |= {"vocabulary": vocabulary, "batch_size": batch_size, "ffn": 4 * hidden if ffn is None else ffn}
    counts |= {"key_heads": heads if key_heads is None else key_heads}
    _check_counts(counts if head_size is None else counts | {"head_size": head_size})
    _check_heads(hidden, heads, counts["key_heads"], head_size)
    _check_words(norm, positions, dtype, recompute)
    sizes = Sizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        key_heads=counts["key_heads"],
        head_size=head_size or hidden // heads,
        ffn=counts["ffn"],
        sequence=sequence,
        vocabulary=vocabulary,
        gated=gated,
        norm=norm,
        positions=positions,
        bias=bias,
        key_bias=key_bias,
        out_bias=out_bias,
        tied=tied,
        causal=causal,
        fused=fused_attention,
    )
    # Takes the memory of one number.
    tokens = torch.zeros(1, 1, dtype=torch.int64).expand(batch_size, sequence)
    return Task(
        model=_model(sizes, dtype),
        data=(tokens, tokens),
        loss=_loss,
        optimizer=optimizer or partial(torch.optim.Adam, lr=1e-4),
        batch_size=batch_size,
        master_dtype=master_dtype,
        gradient_dtype=gradient_dtype,
        recompute=RECOMPUTE[recompute],
    )


def _check_counts(counts: dict[str, int]) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigurationError(name, "must be a whole number of at least 1", value)


def _check_heads(hidden: int, heads: int, key_heads: int, head_size: int | None) -> None:
    if head_size is None and hidden % heads:
        remedy = f"use a multiple of {heads}, or other heads"
        raise ConfigurationError("hidden", f"must be a multiple of the {heads} heads", hidden, remedy)
    if heads % key_heads:
        raise ConfigurationError("key_heads", f"must divide the {heads} heads", key_heads, "omit it")


def _check_words(norm: str, positions: str, dtype: torch.dtype, recompute: bool | str) -> None:
    _check_one_of("norm", norm, NORMS)
    _check_one_of("positions", positions, POSITIONS)
    _check_one_of("recompute", recompute, tuple(RECOMPUTE))
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        remedy = "write torch.bfloat16 or torch.float32"
        raise ConfigurationError("dtype", "must be a floating-point dtype of torch", dtype, remedy)


def _check_one_of(name: str, value: object, known: Sequence[object]) -> None:
    if not isinstance(value, str | bool) or value not in known:
        words = ", ".join(str(each) for each in known)
        raise ConfigurationError(name, f"must be one of {words}", value, "omit it for the default")


def _model(sizes: Sizes, dtype: torch.dtype) -> nn.Sequential:
    with torch.device("meta"):
        block, embedding, norm = Block(sizes), Embedding(sizes), sizes.new_norm()
        head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
    if sizes.tied:
        head.weight = embedding.tokens.weight
    # Copying a block takes a tenth of the time of creating one.
    blocks = nn.Sequential(block, *(copy.deepcopy(block) for _ in range(sizes.layers - 1)))
    parts = OrderedDict[str, nn.Module](embedding=embedding, blocks=blocks, norm=norm, head=head)
    model = nn.Sequential(parts).to(dtype)
    model.even_stages = "blocks"  # type: ignore[assignment]
    return model


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of the next tokens, over all positions."""
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())
