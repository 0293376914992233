"""The user's optimizer, run on flat tensors: on all parameters or on one shard of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SparseAdam

from paceline.model.layout import Layout, flatten
from paceline.optim.layerwise import LayerwiseOptimizer
from paceline.task.checks import waits_for_metric
from paceline.task.task import Task

Memory = Callable[[slice], tuple[Tensor, Tensor]]
"""Return the parameters and the gradient of a slice of the layout, as views."""

BLOCK = 2**18
"""Elements per update on a CPU, for elementwise optimizers. The working set fits in the cache, and no large temporary
tensors are allocated. A multiple of every vector length, so that results are bit-identical.
"""

# Optimizers that update each element independently. Shards may split a parameter, and adjacent parameters may be
# updated as one tensor. Any other optimizer (LARS, LAMB, Muon, the user's own) gets whole parameters.
_ELEMENTWISE = {
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.ASGD,
}


def works_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer) in _ELEMENTWISE


def works_on_parts(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ranks can update parts of a parameter: independently, or after they have summed norms."""
    return works_elementwise(optimizer) or isinstance(optimizer, LayerwiseOptimizer)


def clip(gradient: Sequence[Tensor], bound: float, norm: float | None = None) -> None:
    """Scale a gradient down to a maximum norm. Pass `norm` if the gradient is one shard of a larger gradient."""
    if norm is None:
        (whole,) = gradient
        norm = float(torch.linalg.vector_norm(whole))
    # Same epsilon as torch.nn.utils.clip_grad_norm_: results must be bit-identical.
    if norm + 1e-6 > bound:
        for each in gradient:
            each.mul_(bound / (norm + 1e-6))


class FlatOptimizer:
    """The task's optimizer with its parameter groups, on some slices of the layout."""

    def __init__(
        self,
        task: Task,
        whole: nn.Module,
        layout: Layout,
        memory: Memory,
        shards: Sequence[slice],
    ) -> None:
        """`whole` is a module with all parameters of the model, by the names of the layout."""
        self.optimizer = task.build_optimizer(whole)
        self._runs = _move_to_flat(self.optimizer, whole, layout, memory, shards)
        self._gradients = _gradients_of(self.optimizer)
        self._wants_sparse = isinstance(self.optimizer, SparseAdam)
        self._scheduler: Any = task.build_schedule(self.optimizer)
        self.waits_for_metric = waits_for_metric(self._scheduler)
        # In a trial without a run, the number of updates per epoch is unknown. An epoch is then one update.
        self._every = task.schedule_every if isinstance(task.schedule_every, int) else 1
        self._updates = 0
        self.rate: float | None = None
        """Learning rate of the first group in the last update. None without a schedule."""

    def pieces(self) -> Iterator[tuple[Tensor, int]]:
        """Yield each tensor that is updated, and its offset in the layout."""
        for start, blocks in self._runs:
            for number, block in enumerate(blocks):
                yield block, start + number * BLOCK

    def remembered(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Yield the offset, length and optimizer state (by key) of each run of the layout.

        Elementwise state of blocks is joined into one tensor.
        """
        for start, blocks in self._runs:
            states = [self.optimizer.state.get(block, {}) for block in blocks]
            one = {key: _joined(states, key, blocks[0]) for key in states[0]}
            yield start, sum(block.numel() for block in blocks), one

    def schedule_facts(self) -> dict[str, Any]:
        """Return the state of the learning-rate schedule, in types that JSON supports."""
        facts: dict[str, Any] = {"updates": self._updates}
        if self.waits_for_metric:
            facts["rates"] = [float(group["lr"]) for group in self.optimizer.param_groups]
            state: dict[str, Any] = self._scheduler.state_dict()
            facts["schedule"] = {
                k: v for k, v in state.items() if isinstance(v, bool | int | float | str | list)
            }
        return facts

    def restore_schedule(self, facts: Mapping[str, Any]) -> None:
        """Restore the state of a saved learning-rate schedule. This optimizer must be new."""
        self.advance_schedule(facts["updates"])
        if self.waits_for_metric:
            self._scheduler.load_state_dict(facts["schedule"])
            for group, rate in zip(self.optimizer.param_groups, facts["rates"], strict=True):
                group["lr"] = rate

    def begin_layers(self) -> Iterator[tuple[int, Tensor]]:
        """Begin an update of a layerwise optimizer. Yield the offset of each parameter, and its two squared norms."""
        if isinstance(self.optimizer, LayerwiseOptimizer):
            offsets = {id(block): start for start, (block, *_) in self._runs}
            for parameter, squares in self.optimizer.begin():
                yield offsets[id(parameter)], squares

    def step(self, *, advance: bool = True, squares: Sequence[Tensor] | None = None) -> None:
        """Update the parameters. With `advance`, advance the learning-rate schedule by one update.

        `squares` ends an update that `begin_layers` began. They are in the same order.
        """
        if self._wants_sparse:
            self._make_sparse()
        if squares is not None and isinstance(self.optimizer, LayerwiseOptimizer):
            self.optimizer.reduced = squares
        self.optimizer.step()
        if self._scheduler is not None:
            self.rate = float(self.optimizer.param_groups[0]["lr"])
            if advance:
                self._advance(1)

    def scale_gradient(self, factor: float) -> None:
        """Scale the gradient of this optimizer's parameters."""
        for _, gradient in self._gradients:
            gradient.mul_(factor)

    def _make_sparse(self) -> None:
        """Convert the gradients to sparse tensors of the rows that are not zero.

        A row of zeros counts as unused, even if it is a sum of gradients that is exactly zero.
        """
        for piece, gradient in self._gradients:
            piece.grad = gradient.to_sparse(1)

    def note_metric(self, metric: float) -> None:
        """Step a schedule that depends on the metric."""
        if self.waits_for_metric:
            self._scheduler.step(metric)

    def moments(self) -> list[Tensor]:
        """Return the optimizer state that has the shape of the parameters, such as momentum."""
        return [
            value
            for _, length, state in self.remembered()
            for value in state.values()
            if isinstance(value, Tensor) and value.dim() > 0 and value.numel() == length
        ]

    def advance_schedule(self, updates: int) -> None:
        """Advance the learning-rate schedule by updates that were made on other ranks."""
        if self._scheduler is None:
            return
        with warnings.catch_warnings():
            # Suppress torch's warning that the optimizer has made no updates: other ranks made them.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self._advance(updates)

    def _advance(self, updates: int) -> None:
        before, self._updates = self._updates, self._updates + updates
        if not self.waits_for_metric:
            for _ in range(self._updates // self._every - before // self._every):
                self._scheduler.step()


def _gradients_of(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Return the tensors that an optimizer updates, each with its part of the flat gradient."""
    pieces = [piece for group in optimizer.param_groups for piece in group["params"]]
    return [(piece, piece.grad) for piece in pieces]


def _move_to_flat(
    optimizer: torch.optim.Optimizer,
    whole: nn.Module,
    layout: Layout,
    memory: Memory,
    shards: Sequence[slice],
) -> list[tuple[int, list[Tensor]]]:
    """Replace each group's parameters by the slices of flat tensors that they cover within the shards.

    A group may become empty. It is not removed, since learning-rate schedules read groups by index.

    Return the offset and the tensors of each range of adjacent elements.
    """
    named = dict(whole.named_parameters())
    number = {id(named[name]): i for i, name in enumerate(layout.names)}
    merge = works_elementwise(optimizer)
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


def _joined(states: Sequence[dict[str, Any]], key: str, first: Tensor) -> Any:
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
