"""Updates of the parameters that a rank stores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paceline.context import Batch
from paceline.model.devices import Accelerator
from paceline.model.engines.flat_store import FlatStore
from paceline.model.holding import Holding
from paceline.model.memory import Account
from paceline.model.memory.computed import OptimizerMeter
from paceline.model.optimizer.flat_groups import Memory
from paceline.model.optimizer.updates import Updates, rows_of
from paceline.model.versions import TorchVersions
from paceline.task.task import Task


class TorchOptimization:
    """The optimizers of a task, for the parameters that a rank stores."""

    def __init__(
        self,
        task: Task,
        optimized: nn.Module,
        holding: Holding,
        memory: Memory,
        account: Account,
        accelerator: Accelerator | None,
    ) -> None:
        """`optimized` is a module with all parameters of the model. Optimizers are built from it."""
        self._task = task
        self._holding = holding
        self._accelerator = accelerator
        self._account = account
        self._meter = OptimizerMeter(account)
        self._versions: TorchVersions | None = None
        own = holding.own_slices
        own = None if own is None else [each for each in own if each.start < each.stop]
        self.updates = Updates(task, optimized, holding.layout, memory, own)

    def layer_squares(
        self, shard: slice | None, norm: float | None, *, of: Sequence[Batch], step: int
    ) -> Tensor:
        holding, layout = self._holding, self._holding.layout
        updates, rows = self.updates, rows_of(self.updates.whole)
        if not holding.own_length:
            return torch.zeros(len(rows), 2, dtype=holding.reduction_dtype)
        squares = updates.of(shard).begin_layers(norm, updates.shares(of, step))
        if holding.position:  # the first rank of the tensor group counts what is not split
            squares[[rows[name] for name in layout.names if name not in layout.within]] = 0
        return squares

    def update(
        self,
        shard: slice | None,
        norm: float | None,
        *,
        advance: bool,
        of: Sequence[Batch],
        step: int,
        squares: Tensor | None = None,
    ) -> None:
        if self._versions is not None:
            self._versions.advance()
        if self._holding.segments is not None and not self._holding.layout.length:
            return  # a stage without trainable parameters
        if self._accelerator is not None:
            self._accelerator.begin()
        shares = self.updates.shares(of, step)
        self.updates.of(shard).step(norm, advance=advance, shares=shares, squares=squares)
        self._meter.note_update(self.updates, len(self._task.turns))
        if self._accelerator is not None:
            self._accelerator.end()

    def keep_versions(self, store: FlatStore) -> TorchVersions:
        """Return the versions of the parameters, which are in this store."""
        if self._versions is None:
            self._versions = TorchVersions(store, self.updates, self._account)
        return self._versions

    def advance_schedule(self, updates: int) -> None:
        self.updates.of().advance_schedule(updates)

    def reset(self) -> None:
        self.updates.forget()
        self._meter.forget()

    def moments(self) -> Sequence[Tensor]:
        return self.updates.of().moments()

    def split(self, parts: int) -> Sequence[slice]:
        return self._holding.split(parts, elementwise=self.updates.work_elementwise)
