"""The optimizers of a replica: one for each shard and each model of the task."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor, nn

from paceline.context import Batch
from paceline.model.layout import Layout
from paceline.model.optimizer.flat import FlatOptimizer, clip, works_elementwise
from paceline.model.optimizer.flat_groups import Memory
from paceline.optim.layerwise import LayerwiseOptimizer
from paceline.task.checks import waits_for_metric
from paceline.task.task import Task


def all_work_elementwise(task: Task, module: nn.Module) -> bool:
    """Return whether all optimizers are elementwise, so that shards may split a parameter."""
    return all(works_elementwise(each.build_optimizer(module)) for each in task.by_optimizer().values())


def rows_of(whole: nn.Module) -> dict[str, int]:
    """Return the number of each trainable parameter of the whole model. Ranks of a tensor group hold some of them."""
    named = (name for name, each in whole.named_parameters() if each.requires_grad)
    return {name: row for row, name in enumerate(named)}


class SavedState(Protocol):
    """Saved optimizer state: see `paceline.model.optimizer.saved_state`."""

    def fill(self, shard: tuple[int, int], optimizers: FlatOptimizers) -> None: ...

    def laid_out(self, layout: Layout) -> SavedState: ...

    def unused(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]]: ...


class Updates:
    """The optimizers of each shard that is updated on this rank, created on first use."""

    def __init__(
        self,
        task: Task,
        whole: nn.Module,
        layout: Layout,
        memory: Memory,
        own: Sequence[slice] | None = None,
    ) -> None:
        """`memory` is called at the first update. Until then, parameters and gradient may be moved.

        `whole` is a module with all parameters of the model. Optimizers are built from it, so that every rank has the
        same parameter groups. `layout` has the parameters that are stored on this rank. `own` has the slices of the
        layout that are updated on this rank. None if the whole layout is updated.
        """
        self._task = task
        self.whole = whole
        self._layout = layout
        self._memory = memory
        self._own = own
        self.by_shard: dict[tuple[int, int], FlatOptimizers] = {}
        self.kept: SavedState | None = None
        """Saved state of an earlier run. Optimizers created from now on start from it."""

    @property
    def work_elementwise(self) -> bool:
        """Whether all optimizers are elementwise, so that shards may split a parameter."""
        return all_work_elementwise(self._task, self.whole)

    @cached_property
    def need_norms(self) -> bool:
        """Whether an optimizer needs norms of whole layers. Ranks with parts of a layer must sum them."""
        made = (each.build_optimizer(self.whole) for each in self._task.by_optimizer().values())
        return any(isinstance(each, LayerwiseOptimizer) for each in made)

    @property
    def have_begun(self) -> bool:
        return bool(self.by_shard)

    @cached_property
    def wait_for_metric(self) -> bool:
        """Whether a learning-rate schedule depends on the metric. Also before the first update."""
        scheduled = [each for each in self._task.by_optimizer().values() if each.schedule is not None]
        made = [each.build_schedule(each.build_optimizer(self.whole)) for each in scheduled]
        return any(map(waits_for_metric, made))

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rate of the last update of each optimizer that has a schedule; of its first group."""
        optimizers = next(iter(self.by_shard.values())).by_name if self.by_shard else {}
        rates = {name: each.rate for name, each in optimizers.items() if each.rate is not None}
        return {
            f"learning_rate_{name}" if len(optimizers) > 1 else "learning_rate": r
            for name, r in rates.items()
        }

    def of(self, shard: slice | None = None) -> FlatOptimizers:
        """Return the optimizers of a shard, or of all slices that are updated on this rank."""
        everything = slice(0, self._layout.length)
        shards = self._own if shard is None and self._own is not None else [shard or everything]
        key = (0, self._layout.length) if shard is None else (shard.start, shard.stop)
        found = self.by_shard.get(key)
        if found is None:
            made = FlatOptimizers(self._task, self.whole, self._layout, self._memory, shards)
            found = self.by_shard[key] = made
            if self.kept is not None:
                self.kept.fill(key, made)
        return found

    def move_to(self, parameters: Tensor) -> None:
        """Update these flat parameters from now on. They have the values of the present ones."""
        for each in self.by_shard.values():
            for optimizer in each.by_name.values():
                for piece, start in optimizer.pieces():
                    piece.data = parameters[start : start + piece.numel()].view_as(piece)

    def forget(self) -> None:
        self.by_shard.clear()
        self.kept = None

    def note_metric(self, metric: float) -> None:
        """Step the learning-rate schedules that depend on the metric."""
        for each in self.by_shard.values():
            each.note_metric(metric)

    def shares(self, of: Sequence[Batch], step: int) -> Mapping[str, float] | None:
        """Return each model to update with its share of the samples.

        Without batches, step `step` selects the model.
        """
        turns = self._task.turns
        if not turns:
            return None
        if not of:
            return {turns[step % len(turns)]: 1.0}
        counts: dict[str, int] = {}
        for batch in of:
            name = turns[batch.number % len(turns)]
            counts[name] = counts.get(name, 0) + batch.count
        total = sum(counts.values())
        return {name: count / total if count else 1.0 for name, count in counts.items()}


class FlatOptimizers:
    """The optimizers of some slices of the layout."""

    def __init__(
        self,
        task: Task,
        whole: nn.Module,
        layout: Layout,
        memory: Memory,
        shards: Sequence[slice],
    ) -> None:
        self._gradient = [memory(shard)[1] for shard in shards]
        self._layout = layout
        self._rows = rows_of(whole)
        self._begun: dict[str, list[int]] = {}  # rows of the parameters in an update that has begun
        self._clip_norm = task.clip_norm
        self._turns = task.turns
        self.elsewhere = 0
        """Updates that were made on other ranks."""
        self.by_name = {
            name: FlatOptimizer(each, whole, layout, memory, shards)
            for name, each in task.by_optimizer().items()
        }

    def step(
        self,
        norm: float | None = None,
        *,
        advance: bool = True,
        shares: Mapping[str, float] | None = None,
        squares: Tensor | None = None,
    ) -> None:
        """Clip the gradient if the task has `clip_norm`, and update.

        `shares` has the models to update and their shares of the gradient's samples, if models take turns. The gradient
        of a turn is a mean over its own samples. Other models and their optimizer state are not changed. `squares` ends
        an update that `begin_layers` began.
        """
        if squares is None:
            self._prepare_gradient(norm, shares)
        for name, each in self.by_name.items():
            if shares is None or name in shares:
                rows = None if squares is None else [squares[row] for row in self._begun.get(name, ())]
                each.step(advance=advance, squares=rows)

    def _prepare_gradient(self, norm: float | None, shares: Mapping[str, float] | None) -> None:
        if self._clip_norm is not None:
            clip(self._gradient, self._clip_norm, norm)
        for name, share in (shares or {}).items():
            if share != 1.0:
                self.by_name[name].scale_gradient(1.0 / share)

    def begin_layers(self, norm: float | None, shares: Mapping[str, float] | None) -> Tensor:
        """Begin an update of layerwise optimizers. Return two squared norms for each parameter of the whole model.

        They cover the parts on this rank. They are zero for parameters that these optimizers do not update.
        """
        self._prepare_gradient(norm, shares)
        found = {
            name: {self._row(start): squares for start, squares in each.begin_layers()}
            for name, each in self.by_name.items()
            if shares is None or name in shares
        }
        matrix = self._gradient[0].new_zeros(len(self._rows), 2)
        self._begun = {name: list(rows) for name, rows in found.items()}
        for rows in found.values():
            for row, squares in rows.items():
                matrix[row] = squares
        return matrix

    def _row(self, start: int) -> int:
        return self._rows[self._layout.names[bisect_right(self._layout.offsets, start) - 1]]

    def advance_schedule(self, updates: int) -> None:
        """Advance the learning-rate schedules by updates that were made on other ranks. Each model counts its own
        turns.
        """
        before, self.elsewhere = self.elsewhere, self.elsewhere + updates
        for name, each in self.by_name.items():
            every = len(self._turns) or 1
            own = self._turns.count(name) if self._turns else 1
            each.advance_schedule(self.elsewhere * own // every - before * own // every)

    def note_metric(self, metric: float) -> None:
        """Step the schedules that depend on the metric."""
        for each in self.by_name.values():
            each.note_metric(metric)

    @property
    def waits_for_metric(self) -> bool:
        return any(each.waits_for_metric for each in self.by_name.values())

    def moments(self) -> Sequence[Tensor]:
        """Return the optimizer state that has the shape of the parameters, such as momentum."""
        return [moment for each in self.by_name.values() for moment in each.moments()]
