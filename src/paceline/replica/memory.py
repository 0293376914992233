"""The memory ledger of a rank: what it holds of each kind, and what it held when that was most.

- `parameters`: the flat parameters, those that are not trained, what is gathered of other ranks' parameters, and other
  copies of the model's weights: a moving average, a server's beside a worker's. Not the whole model that a reporter
  has while the run looks at it: that is measuring, not training.
- `gradients`: the flat gradient, and that of a segment until ranks that share it have summed it.
- `optimizer`: what optimizers remember, from the first update on; of a shard, its own only.
- `activations`: what a forward pass leaves for its backward pass.
- `buffers`: what a rank keeps besides: copies for talking, gathered pieces that are no parameters, what a strategy
  remembers (`ctx.model.state`), and the module's own buffers (BatchNorm's statistics and the like), with the copy of
  them that a computation makes.

Whoever holds memory opens an `Account`, and says in it how much it holds. What an operation needs while it runs, and
what a link keeps for its messages, is not counted; docs/memory.md says how far that is from what a process takes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

__all__ = ["KINDS", "TOTAL", "Account", "Kind", "Ledger", "empty_peak"]

Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers"]

KINDS: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "activations", "buffers")
TOTAL = "total"
_PLACES = {kind: place for place, kind in enumerate(KINDS)}


def empty_peak() -> dict[str, int]:
    """The peak of a rank that held nothing."""
    return dict.fromkeys((*KINDS, TOTAL), 0)


class Ledger:
    """Bytes that one rank holds, by kind. Several threads may write to it."""

    __slots__ = ("_earlier", "_lock", "_now", "_peak", "peak_bytes", "total_bytes")

    def __init__(self) -> None:
        self._now = [0] * len(KINDS)
        self._peak = list(self._now)
        self._earlier: Mapping[str, int] = {}  # the peak of the run before it went on from a checkpoint
        self.total_bytes = 0
        self.peak_bytes = 0
        self._lock = threading.Lock()

    def account(self) -> Account:
        """For one who holds memory on this rank."""
        return Account(self)

    def change(self, kind: Kind, nbytes: int) -> None:
        """So many bytes more of a kind, or less."""
        with self._lock:
            self._now[_PLACES[kind]] += nbytes
            self.total_bytes += nbytes
            if self.total_bytes > self.peak_bytes:
                self.peak_bytes, self._peak = self.total_bytes, list(self._now)

    def touch(self, kind: Kind, nbytes: int) -> None:
        """So many bytes more, for a moment: quicker than `change` and back."""
        if self.total_bytes + nbytes > self.peak_bytes:
            self.change(kind, nbytes)
            self.change(kind, -nbytes)

    def begin(self) -> None:
        """Forget the peak so far: what was there before the training began does not count."""
        with self._lock:
            self.peak_bytes, self._peak = self.total_bytes, list(self._now)

    @property
    def now(self) -> dict[str, int]:
        """What is held at present."""
        return _figures(self._now)

    @property
    def peak(self) -> dict[str, int]:
        """What was held when the total was highest; the first time, if it was so several times."""
        if self._earlier.get(TOTAL, 0) > self.peak_bytes:
            return {**empty_peak(), **self._earlier}
        return _figures(self._peak)

    def take_over(self, peak: Mapping[str, int]) -> None:
        """Of a rank that goes on from a checkpoint: its peak until then stays, if none is higher from now on."""
        self._earlier = dict(peak)


class Account:
    """What one part of a rank holds: a replica, a strategy's states. It can say something else at any time."""

    __slots__ = ("_held", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held = [0] * len(KINDS)

    def hold(self, kind: Kind, nbytes: int) -> None:
        """From now on it holds exactly so much of a kind."""
        self.add(kind, nbytes - self._held[_PLACES[kind]])

    def add(self, kind: Kind, nbytes: int) -> None:
        """So many bytes more of a kind."""
        if nbytes:
            self._held[_PLACES[kind]] += nbytes
            self._ledger.change(kind, nbytes)

    def free(self, kind: Kind, nbytes: int) -> None:
        """So many bytes less."""
        self.add(kind, -nbytes)

    def held(self, kind: Kind) -> int:
        return self._held[_PLACES[kind]]

    @contextmanager
    def holding(self, kind: Kind, nbytes: int) -> Iterator[None]:
        """So many bytes more for a while."""
        self.add(kind, nbytes)
        try:
            yield
        finally:
            self.free(kind, nbytes)

    def touch(self, kind: Kind, nbytes: int) -> None:
        """So many bytes more, for a moment."""
        self._ledger.touch(kind, nbytes)

    def begin(self) -> None:
        """See `Ledger.begin`."""
        self._ledger.begin()

    def move_to(self, ledger: Ledger) -> None:
        """Write into another ledger from now on."""
        for kind, nbytes in zip(KINDS, self._held, strict=True):
            if nbytes:
                self._ledger.change(kind, -nbytes)
                ledger.change(kind, nbytes)
        self._ledger = ledger

    def close(self) -> None:
        """It holds nothing any more."""
        for kind in KINDS:
            self.hold(kind, 0)


def _figures(amounts: list[int]) -> dict[str, int]:
    return {**dict(zip(KINDS, amounts, strict=True)), TOTAL: sum(amounts)}
