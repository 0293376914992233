"""A replica of shapes alone: for simulations that charge time but do no mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from paceline.context import Batch
from paceline.replica.memory import Account, Ledger
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples, Source
from paceline.replica.shape_memory import ShapeMemory
from paceline.task import Task

__all__ = ["ShapeReplica"]


class ShapeReplica(Replica):
    """Its module is on the meta device, so a model of any size costs no memory; one serves all ranks."""

    _moments: Sequence[Tensor] | None = None
    _memory: ShapeMemory | None = None
    is_stand_in = False
    """Whether its module is not the task's, and the task's samples would not fit it."""

    def __init__(self, task: Task, module: nn.Module, *, seed: int = 0, rank: int = 0) -> None:
        super().__init__(task, module, seed=seed, rank=rank)
        self._shards: dict[int, Sequence[slice]] = {}
        self.known_parts: dict[Any, Any] = {}
        """What is known of the parts of the model that ranks hold: see `BlankPart`."""

    def twin(self) -> Replica:
        return self

    # Memory: of one rank, for this replica is that of many

    @property
    def memory(self) -> ShapeMemory:
        if self._memory is None:
            self._memory = ShapeMemory(self)
        return self._memory

    def account_in(self, ledger: Ledger) -> Account:
        account = ledger.account()
        if not self.is_stand_in:
            self.memory.hold_model(account)
        return account

    def note_computed(self, account: Account, batch: Batch, few: Callable[[], Any]) -> None:
        """A rank has computed the gradient of a batch. `few` gives some samples, for their shapes."""
        if self.is_stand_in or not batch.count:
            return
        memory = self.memory
        account.hold("buffers", 2 * memory.buffers)  # a copy, for a computation that is broken off
        largest = -(-batch.count // self.task.accumulate)
        account.touch("activations", memory.activations(largest, few))

    def note_updated(self, account: Account, shard: slice | None) -> None:
        """A rank has updated a shard of the parameters, or all of them."""
        if not self.is_stand_in:
            place = (0, self.layout.length) if shard is None else (shard.start, shard.stop)
            account.hold("optimizer", self.memory.optimizer([place]))

    def compute(self, batch: Batch, samples: Source, *args: Any, **kwargs: Any) -> float:
        return float("nan")

    def apply(
        self,
        shard: slice | None = None,
        norm: float | None = None,
        *,
        advance: bool = True,
        of: Sequence[Batch] = (),
        step: int = 0,
    ) -> None:
        pass

    def advance_schedule(self, updates: int) -> None:
        pass

    def release(self) -> None:
        pass

    def reclaim(self) -> None:
        pass

    def place(self, parameters: Tensor | None = None, gradient: Tensor | None = None) -> None:
        pass

    def shards(self, parts: int) -> Sequence[slice]:
        if parts not in self._shards:  # thousands of ranks ask for the same
            self._shards[parts] = super().shards(parts)
        return self._shards[parts]

    def moments(self) -> Sequence[Tensor]:
        """Their shapes, so that sending them costs time. The optimizer makes them in its first update."""
        if self._moments is None:
            optimizers = self.updates.of()
            for each in optimizers.by_name.values():
                each.optimizer.step()
            self._moments = optimizers.moments()
        return self._moments

    def evaluate(self, samples: Samples, parameters: Tensor | None = None) -> dict[str, float]:
        return dict.fromkeys(self.task.metrics(), float("nan"))

    def state(self, parameters: Tensor | None = None) -> dict[str, Tensor]:
        return {}
