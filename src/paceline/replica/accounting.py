"""What a replica writes into the ledger of its rank.

The whole model that a reporter has while the run looks at it is not in it: looking is measuring, not training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from paceline.replica.activations import Activations, bytes_of, refuses_counting, state_of
from paceline.replica.memory import Account, Ledger
from paceline.replica.optimizers import FlatOptimizers, Updates

if TYPE_CHECKING:
    from paceline.replica.replica import Replica

__all__ = ["Accounting", "buffers_bytes", "flat_bytes", "optimizer_bytes", "parameters_bytes"]

T = TypeVar("T")


class Accounting:
    """The account of one replica, and what is known of its activations."""

    def __init__(self) -> None:
        self.account = Ledger().account()
        """A ledger of nobody's, until the replica is a rank's: see `Account.move_to`."""
        self._activations: dict[int, int] = {}  # by the number of samples
        self._again: dict[int, int] = {}  # of the largest block that is computed again
        self._looks_left = 0
        self._shards = 0

    def hold_model(self, replica: Replica) -> None:
        """After the replica was made, or its flat tensors have moved."""
        self.account.hold("parameters", parameters_bytes(replica))
        self.account.hold("gradients", flat_bytes(replica.gradient))
        self.account.hold("buffers", buffers_bytes(replica.buffers))

    def take_over(self, account: Account, replica: Replica) -> None:
        """Write into this account, which was another replica's: this one has taken its place."""
        self.account = account
        self.hold_model(replica)
        account.begin()

    def hold_buffers(self, buffers: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
        """The module's own, and copies of them."""
        if buffers:
            self.account.hold("buffers", buffers_bytes(buffers) + buffers_bytes(copies))

    # Activations

    def forward(self, replica: Replica, samples: int, run: Callable[[], T]) -> T:
        """A forward pass. What it leaves is counted if it is the first of so many samples; and it is added."""
        made = run() if samples in self._activations else self._count(replica, samples, run)
        self.account.add("activations", self._activations[samples])
        return made

    def end_backward(self, replica: Replica, samples: int) -> None:
        """What the forward pass had left is gone."""
        left, again = self._activations[samples], replica.recomputing
        if again is not None and again.counts:
            self._again[samples], again.counts = again.largest_bytes, False
        self.account.touch("activations", self._again.get(samples, 0))
        self.account.free("activations", left)

    def _count(self, replica: Replica, samples: int, run: Callable[[], T]) -> T:
        counted = Activations([replica.parameters, *state_of(replica.module)])
        if replica.recomputing is not None:
            replica.recomputing.counts, replica.recomputing.largest_bytes = True, 0
        try:
            with counted.counting():
                made = run()
        except RuntimeError as error:
            if not refuses_counting(error):
                raise
            counted.let_go()
            replica.undo_buffers()
            made = run()
        self._activations[samples] = counted.let_go()
        return made

    # Optimizers

    def note_update(self, updates: Updates, turns: int) -> None:
        """After an update. An optimizer has all its state after the first; of several, each after its own first."""
        if len(updates.by_shard) != self._shards:
            self._shards, self._looks_left = len(updates.by_shard), turns + 1
        if self._looks_left:
            self._looks_left -= 1
            self.account.hold("optimizer", optimizer_bytes(updates.by_shard.values()))

    def forget_optimizer(self) -> None:
        self._shards = 0
        self.account.hold("optimizer", 0)


def flat_bytes(flat: Tensor) -> int:
    """Of a flat tensor, which may have given up its memory, and may be a part of a larger one."""
    return min(flat.nbytes, flat.untyped_storage().nbytes())


def parameters_bytes(replica: Replica) -> int:
    """The flat parameters, and what the module holds besides: those that are not trained, and copies."""
    flat = replica.parameters
    others = Activations([flat])
    others.note([each for each in replica.module.parameters() if each.is_meta == flat.is_meta])
    return flat_bytes(flat) + others.let_go()


def buffers_bytes(buffers: Iterable[Tensor]) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def optimizer_bytes(all_optimizers: Iterable[FlatOptimizers]) -> int:
    """The tensors of their state; a count of updates, a single number, is left out."""
    flat = (each.optimizer for optimizers in all_optimizers for each in optimizers.by_name.values())
    states = (state for optimizer in flat for state in optimizer.state.values())
    return bytes_of(
        value for state in states for value in state.values() if isinstance(value, Tensor) and value.dim()
    )
