"""Memory of a model that computes: activations and optimizer state, measured.

The whole model that a reporter allocates for evaluation is not counted: it is used for measuring, not for training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from paceline.model.activations import Activations, bytes_of, refuses_counting
from paceline.model.memory.ledger import Account

if TYPE_CHECKING:
    from paceline.model.optimizer.updates import FlatOptimizers, Updates
    from paceline.model.recomputing import Recomputing

T = TypeVar("T")


class ActivationMeter:
    """Activations of passes through a whole model. They are counted once for each number of samples."""

    def __init__(
        self,
        account: Account,
        state: Callable[[], Iterable[Tensor]],
        recomputing: Recomputing | None,
        undo: Callable[[], None],
        counting: Callable[[Activations], AbstractContextManager[None]] = Activations.counting,
    ) -> None:
        """`state` returns parameters and buffers, which do not count as activations. `undo` resets the buffers
        before a second try.

        `counting` returns the context in which the tensors that autograd saves are counted.
        """
        self._account = account
        self._state = state
        self._recomputing = recomputing
        self._undo = undo
        self._counting = counting
        self._kept: dict[int, int] = {}  # by number of samples
        self._again: dict[int, int] = {}  # bytes of the largest recomputed block

    def forward(self, samples: int, run: Callable[[], T]) -> T:
        """Run a forward pass, and record the bytes that it stores."""
        made = run() if samples in self._kept else self._count(samples, run)
        self._account.add("activations", self._kept[samples])
        return made

    def end_backward(self, samples: int) -> None:
        """Record that the stored bytes are freed."""
        again = self._recomputing
        if again is not None and again.counts:
            self._again[samples], again.counts = again.largest_bytes, False
        self._account.touch("activations", self._again.get(samples, 0))
        self._account.free("activations", self._kept[samples])

    def _count(self, samples: int, run: Callable[[], T]) -> T:
        counted = Activations(self._state())
        if self._recomputing is not None:
            self._recomputing.counts, self._recomputing.largest_bytes = True, 0
        try:
            with self._counting(counted):
                made = run()
        except RuntimeError as error:
            if not refuses_counting(error):
                raise
            counted.clear()
            self._undo()
            made = run()
        self._kept[samples] = counted.clear()
        return made


class OptimizerMeter:
    """State of the optimizers of a rank."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._looks_left = 0
        self._shards = 0

    def note_update(self, updates: Updates, turns: int) -> None:
        """Record the state after an update. Each optimizer has all of its state after its first update."""
        if len(updates.by_shard) != self._shards:
            self._shards, self._looks_left = len(updates.by_shard), turns + 1
        if self._looks_left:
            self._looks_left -= 1
            self._account.hold("optimizer", _state_bytes(updates.by_shard.values()))

    def forget(self) -> None:
        self._shards = 0
        self._account.hold("optimizer", 0)


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _state_bytes(all_optimizers: Iterable[FlatOptimizers]) -> int:
    """Return the bytes of all state tensors. Single numbers, such as a count of updates, are left out."""
    flat = (each.optimizer for optimizers in all_optimizers for each in optimizers.by_name.values())
    states = (state for optimizer in flat for state in optimizer.state.values())
    return bytes_of(
        value for state in states for value in state.values() if isinstance(value, Tensor) and value.dim()
    )
