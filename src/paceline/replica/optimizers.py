"""What updates a replica: the optimizers of a task (one, or one for each of several models), shard by shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn

from paceline.context import Batch
from paceline.replica.layout import Layout
from paceline.replica.optimizer import FlatOptimizer, Memory, clip, works_elementwise
from paceline.task import Task

__all__ = ["FlatOptimizers", "Updates", "all_work_elementwise"]


def all_work_elementwise(task: Task, module: nn.Module) -> bool:
    """Whether the parameters may be cut anywhere."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return True  # a part of a model may have none, and optimizers refuse to be built of nothing
    return all(works_elementwise(each.build_optimizer(module)) for each in task.by_optimizer().values())


class Kept(Protocol):
    """What optimizers remembered: see `paceline.replica.keeping`."""

    def fill(self, shard: tuple[int, int], optimizers: FlatOptimizers) -> None: ...

    def laid_out(self, layout: Layout) -> Kept: ...


class Updates:
    """The optimizers of each shard that is updated here, made when they are first needed."""

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        layout: Layout,
        memory: Memory,
        own: Sequence[slice] | None = None,
    ) -> None:
        """`memory` is asked at the first update: before it, parameters and gradient may be placed elsewhere.

        `own`: the parts of the layout that are updated here, where that is not all of it.
        """
        self._task = task
        self._module = module
        self._layout = layout
        self._memory = memory
        self._own = own
        self.by_shard: dict[tuple[int, int], FlatOptimizers] = {}
        self.kept: Kept | None = None
        """What optimizers of an earlier run remembered: those that are made from now on begin with it."""

    @property
    def have_begun(self) -> bool:
        return bool(self.by_shard)

    @property
    def wait_for_metric(self) -> bool:
        """Whether a learning-rate schedule goes by the metric."""
        return any(each.waits_for_metric for each in self.by_shard.values())

    def of(self, shard: slice | None = None) -> FlatOptimizers:
        """The optimizers of a shard, or of all that is updated here."""
        everything = slice(0, self._layout.length)
        shards = self._own if shard is None and self._own is not None else [shard or everything]
        key = (0, self._layout.length) if shard is None else (shard.start, shard.stop)
        found = self.by_shard.get(key)
        if found is None:
            made = FlatOptimizers(self._task, self._module, self._layout, self._memory, shards)
            found = self.by_shard[key] = made
            if self.kept is not None:
                self.kept.fill(key, made)
        return found

    def forget(self) -> None:
        self.by_shard.clear()
        self.kept = None

    def note_metric(self, metric: float) -> None:
        """Step the learning-rate schedules that go by the metric."""
        for each in self.by_shard.values():
            each.note_metric(metric)

    def shares(self, of: Sequence[Batch], step: int) -> Mapping[str, float] | None:
        """The models whose turn it is in these batches, or in a step of the run, each with its share of the samples."""
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
    """What updates some slices of the layout."""

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        layout: Layout,
        memory: Memory,
        shards: Sequence[slice],
    ) -> None:
        self._gradient = [memory(shard)[1] for shard in shards]
        self._clip_norm = task.clip_norm
        self._turns = task.turns
        self.elsewhere = 0
        """Updates that were made on other ranks."""
        self.by_name = {
            name: FlatOptimizer(each, module, layout, memory, shards)
            for name, each in task.by_optimizer().items()
        }

    def step(
        self, norm: float | None = None, *, advance: bool = True, shares: Mapping[str, float] | None = None
    ) -> None:
        """Clip if the task says so, and update.

        `shares`: where models take turns, whose turns the gradient is of, and the share of its samples that each has.
        The gradient of a turn is a mean over its own samples. Who has no turn is left alone, momentum and all.
        """
        if self._clip_norm is not None:
            clip(self._gradient, self._clip_norm, norm)
        for name, share in (shares or {}).items():
            if share != 1.0:
                self.by_name[name].scale_gradient(1.0 / share)
        for name, each in self.by_name.items():
            if shares is None or name in shares:
                each.step(advance=advance)

    def advance_schedule(self, updates: int) -> None:
        """Move the learning-rate schedules on by updates that were not made here: each model's by its turns."""
        before, self.elsewhere = self.elsewhere, self.elsewhere + updates
        for name, each in self.by_name.items():
            every = len(self._turns) or 1
            own = self._turns.count(name) if self._turns else 1
            each.advance_schedule(self.elsewhere * own // every - before * own // every)

    def note_metric(self, metric: float) -> None:
        """Step the schedules that go by the metric."""
        for each in self.by_name.values():
            each.note_metric(metric)

    @property
    def waits_for_metric(self) -> bool:
        return any(each.waits_for_metric for each in self.by_name.values())

    def moments(self) -> Sequence[Tensor]:
        """The optimizers' state that has the shape of the parameters: momentum and the like."""
        return [moment for each in self.by_name.values() for moment in each.moments()]
