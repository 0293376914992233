"""The user's optimizer, run on flat tensors: on all parameters or on one shard of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SparseAdam

from paceline.model.layout import Layout
from paceline.model.optimizer.flat_groups import Memory, joined, move_to_flat
from paceline.optim.layerwise import LayerwiseOptimizer
from paceline.task.checks import waits_for_metric
from paceline.task.task import Task

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
        merge = works_elementwise(self.optimizer)
        self._runs = move_to_flat(self.optimizer, whole, layout, memory, shards, merge=merge)
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
            offset = start
            for block in blocks:
                yield block, offset
                offset += block.numel()

    def remembered(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Yield the offset, length and optimizer state (by key) of each run of the layout.

        Elementwise state of blocks is joined into one tensor.
        """
        for start, blocks in self._runs:
            states = [self.optimizer.state.get(block, {}) for block in blocks]
            one = {key: joined(states, key, blocks[0]) for key in states[0]}
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
