"""Parameter groups of the user's optimizer, moved to flat tensors: runs of adjacent elements, cut into blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from paceline.model.layout import Layout, flatten

Memory = Callable[[slice], tuple[Tensor, Tensor]]
"""Return the parameters and the gradient of a slice of the layout, as views."""

BLOCK = 2**18
"""Elements per update on a CPU, for elementwise optimizers. The working set fits in the cache, and no large temporary
tensors are allocated. A multiple of every vector length, so that results are bit-identical.
"""


def move_to_flat(
    optimizer: torch.optim.Optimizer,
    whole: nn.Module,
    layout: Layout,
    memory: Memory,
    shards: Sequence[slice],
    *,
    merge: bool,
) -> list[tuple[int, list[Tensor]]]:
    """Replace each group's parameters by the slices of flat tensors that they cover within the shards.

    A group may become empty. It is not removed, since learning-rate schedules read groups by index. With `merge`,
    adjacent parameters form one run.

    Return the offset and the tensors of each range of adjacent elements.
    """
    named = dict(whole.named_parameters())
    number = {id(named[name]): i for i, name in enumerate(layout.names)}
    old_state = dict(optimizer.state)
    optimizer.state.clear()
    runs: list[tuple[int, list[Tensor]]] = []
    for group in optimizer.param_groups:
        owned = {number[id(p)]: p for p in group["params"] if id(p) in number}
        pieces: list[Tensor] = []
        for run, shard in product(_runs(sorted(owned), merge), shards):
            first = layout.offsets[run.start]
            a, b = max(first, shard.start), min(layout.offsets[run.stop], shard.stop)
            if a < b:
                values, gradients = memory(slice(a, b))
                if not merge:
                    values, gradients = (layout.view(flat, run.start) for flat in (values, gradients))
                blocks = _blocks(values, gradients, cut=merge)
                states = [_state_here(old_state.get(owned[i], {}), layout, i) for i in run]
                _carry_state(optimizer, blocks, states, slice(a - first, b - first))
                runs.append((a, blocks))
                pieces += blocks
        group["params"] = pieces
    return runs


def _blocks(values: Tensor, gradients: Tensor, *, cut: bool) -> list[Tensor]:
    """Return the parameters for an optimizer, with their gradients. Only a CPU updates in blocks."""
    cuts = cut and values.is_cpu
    pairs = zip(values.split(BLOCK), gradients.split(BLOCK), strict=True) if cuts else [(values, gradients)]  # type: ignore[no-untyped-call]
    blocks: list[Tensor] = []
    for value, gradient in pairs:
        blocks.append(nn.Parameter(value))
        blocks[-1].grad = gradient
    return blocks


def joined(states: Sequence[dict[str, Any]], key: str, first: Tensor) -> Any:
    """Return the state of a run under one key. Elementwise state is joined, and blocks become views of it."""
    parts = [state[key] for state in states]
    if len(parts) == 1 or not isinstance(parts[0], Tensor) or parts[0].shape != first.shape:
        return parts[0]
    if _are_adjacent(parts):
        return parts[0].as_strided((sum(map(len, parts)),), (1,))
    whole = torch.cat(parts)
    for state, part in zip(states, whole.split(BLOCK), strict=True):  # type: ignore[no-untyped-call]
        state[key] = part
    return whole


def _are_adjacent(parts: Sequence[Tensor]) -> bool:
    """Return whether the tensors are adjacent in one storage."""
    if len({part.untyped_storage().data_ptr() for part in parts}) > 1:
        return False
    return all(b.data_ptr() - a.data_ptr() == a.nbytes for a, b in pairwise(parts))


def _runs(numbers: list[int], merge: bool) -> list[range]:
    """Return parameter numbers as runs of consecutive numbers, or one by one."""
    if not merge:
        return [range(i, i + 1) for i in numbers]
    runs: list[range] = []
    for i in numbers:
        if runs and runs[-1].stop == i:
            runs[-1] = range(runs[-1].start, i + 1)
        else:
            runs.append(range(i, i + 1))
    return runs


def _state_here(state: dict[str, Any], layout: Layout, number: int) -> dict[str, Any]:
    """Return the state of a parameter. If the parameter is split, return this rank's part of the state."""
    within = layout.within.get(layout.names[number])
    if within is None:
        return state
    return {
        key: within.of(value) if isinstance(value, Tensor) and value.shape == within.shape else value
        for key, value in state.items()
    }


def _carry_state(
    optimizer: torch.optim.Optimizer, blocks: Sequence[Tensor], states: list[dict[str, Any]], part: slice
) -> None:
    """Move state that an optimizer creates in its constructor (such as Adagrad's) to the flat tensors."""
    piece = blocks[0]
    for key, first in states[0].items():
        if isinstance(first, Tensor) and first.dim() > 0:
            dtype = piece.dtype if first.is_floating_point() or first.is_complex() else first.dtype
            whole = flatten([state[key] for state in states], dtype, piece.device)[part].clone()
            parts = whole.split([block.numel() for block in blocks])  # type: ignore[no-untyped-call]
            for block, own in zip(blocks, parts, strict=True):
                optimizer.state[block][key] = own.view(block.shape)
        else:
            for block in blocks:
                optimizer.state[block][key] = first.clone() if isinstance(first, Tensor) else first
