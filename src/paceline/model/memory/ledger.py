"""The memory ledger of a rank: the bytes that it holds of each kind, now and at the peak.

- `parameters`: the flat parameters, frozen parameters, parameters gathered from other ranks, and other copies of the
  weights, such as a moving average. The whole model that a reporter has for evaluation does not count: it is used for
  measuring, not for training.
- `gradients`: the flat gradient, and the gradient of a shared segment until its ranks have summed it.
- `optimizer`: optimizer state, at its largest. A rank with a shard counts the state of this shard. The state is created
  by the first update, but the peak counts it from the start, so that a run of one step has the peak of a longer run.
- `activations`: tensors that a forward pass stores for its backward pass.
- `buffers`: all other memory: copies for communication, gathered tensors that are not parameters, the state of a
  strategy (`ctx.model.state`), the module's buffers (BatchNorm statistics, for example), and the copy of these that a
  computation makes.

Each component that holds memory opens an `Account` and records its bytes there. Temporary memory of operations and
message buffers of links are not counted. docs/memory.md compares these figures with the memory of a process.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal

Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers"]

KINDS: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "activations", "buffers")
TOTAL = "total"
_PLACES = {kind: place for place, kind in enumerate(KINDS)}
_OPTIMIZER = _PLACES["optimizer"]


def empty_peak() -> dict[str, int]:
    """Return the peak of a rank that allocates nothing."""
    return dict.fromkeys((*KINDS, TOTAL), 0)


class Ledger:
    """Bytes that one rank holds, by kind. Several threads may write to it."""

    __slots__ = ("_earlier", "_lock", "_now", "_optimizer_bytes", "_peak", "_peak_bytes", "_total_bytes")

    def __init__(self) -> None:
        self._now = [0] * len(KINDS)
        self._peak = list(self._now)
        self._earlier: Mapping[str, int] = {}  # the peak before the run was resumed from a checkpoint
        self._optimizer_bytes = 0  # the largest size of the optimizer state
        # These two are without the optimizer state.
        self._total_bytes = 0
        self._peak_bytes = 0
        self._lock = threading.Lock()

    def account(self) -> Account:
        """Open an account for one holder of memory on this rank."""
        return Account(self)

    def change(self, kind: Kind, nbytes: int) -> None:
        """Add `nbytes` bytes of a kind; subtract them if negative."""
        with self._lock:
            self._now[_PLACES[kind]] += nbytes
            if kind == "optimizer":
                self._optimizer_bytes = max(self._optimizer_bytes, self._now[_OPTIMIZER])
                return
            self._total_bytes += nbytes
            if self._total_bytes > self._peak_bytes:
                self._peak_bytes, self._peak = self._total_bytes, list(self._now)

    def touch(self, kind: Kind, nbytes: int) -> None:
        """Add `nbytes` bytes and subtract them again, so that only the peak may change.

        Faster than two calls of `change`.
        """
        if self._total_bytes + nbytes > self._peak_bytes:
            self.change(kind, nbytes)
            self.change(kind, -nbytes)

    def begin(self) -> None:
        """Reset the peak to the current total, because memory before the training does not count."""
        with self._lock:
            self._peak_bytes, self._peak = self._total_bytes, list(self._now)
            self._optimizer_bytes = self._now[_OPTIMIZER]

    @property
    def now(self) -> dict[str, int]:
        """Bytes held now, by kind."""
        return _figures(self._now)

    @property
    def peak(self) -> dict[str, int]:
        """Bytes held when the total without optimizer state was highest, and the largest optimizer state.

        If the total was reached several times, the first time counts.
        """
        if self._earlier.get(TOTAL, 0) > self._peak_bytes + self._optimizer_bytes:
            return {**empty_peak(), **self._earlier}
        return _figures([*self._peak[:_OPTIMIZER], self._optimizer_bytes, *self._peak[_OPTIMIZER + 1 :]])

    def take_over(self, peak: Mapping[str, int]) -> None:
        """Set the peak of the run before it was resumed. It remains the peak unless it is exceeded."""
        self._earlier = dict(peak)


class Account:
    """Bytes held by one component of a rank, such as a replica or the state of a strategy."""

    __slots__ = ("_held", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held = [0] * len(KINDS)

    def hold(self, kind: Kind, nbytes: int) -> None:
        """Set the bytes held of a kind."""
        self.add(kind, nbytes - self._held[_PLACES[kind]])

    def add(self, kind: Kind, nbytes: int) -> None:
        """Add `nbytes` bytes of a kind."""
        if nbytes:
            self._held[_PLACES[kind]] += nbytes
            self._ledger.change(kind, nbytes)

    def free(self, kind: Kind, nbytes: int) -> None:
        """Subtract `nbytes` bytes of a kind."""
        self.add(kind, -nbytes)

    def held(self, kind: Kind) -> int:
        return self._held[_PLACES[kind]]

    def touch(self, kind: Kind, nbytes: int) -> None:
        """Add `nbytes` bytes and subtract them again, so that only the peak may change.

        Faster than two calls of `add`.
        """
        self._ledger.touch(kind, nbytes)

    def begin(self) -> None:
        """See `Ledger.begin`."""
        self._ledger.begin()

    def move_to(self, ledger: Ledger) -> None:
        """Move all entries to another ledger, and write to it from now on."""
        for kind, nbytes in zip(KINDS, self._held, strict=True):
            if nbytes:
                self._ledger.change(kind, -nbytes)
                ledger.change(kind, nbytes)
        self._ledger = ledger

    def close(self) -> None:
        """Set the bytes of every kind to zero."""
        for kind in KINDS:
            self.hold(kind, 0)


def _figures(amounts: list[int]) -> dict[str, int]:
    return {**dict(zip(KINDS, amounts, strict=True)), TOTAL: sum(amounts)}
