"""Samples of a stream, found by their position in it.

Passes over the stream follow each other without a break, so sample i belongs to the global batch i // batch_size for
any number of workers. Every rank reads the whole stream and keeps its own part. Random numbers drawn while the stream
is read depend on the run's seed and the batch, not on the rank, so all ranks read the same stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from paceline.errors import ConfigurationError
from paceline.system.seeding import seed_all, stream_seed

_CURSORS = 8
"""Maximum number of positions at which one process reads a stream concurrently. Simulated workers may be many
batches apart."""


class Stream:
    """The samples of a stream. An earlier batch that is not cached is read again from the beginning."""

    def __init__(self, source: Iterable[Any], *, batch_size: int, seed: int, kept: int = 1) -> None:
        """`kept` is the number of recent batches to cache for slower workers."""
        self._source = source
        self._batch_size = batch_size
        self._seed = seed
        self._kept = kept
        self._cursors: list[_Cursor] = []
        """Sorted by last use, with the most recently used one last."""

    def read(self, positions: Iterable[int]) -> list[Any]:
        """Return the samples at these positions."""
        found = []
        for position in positions:
            batch, place = divmod(position, self._batch_size)
            found.append(self._batch(batch)[place])
        return found

    def _batch(self, number: int) -> list[Any]:
        cursor = self._cursor_for(number)
        while number not in cursor.kept:
            cursor.read_on()
        if self._cursors[-1] is not cursor:
            self._cursors.remove(cursor)
            self._cursors.append(cursor)
        return cursor.kept[number]

    def _cursor_for(self, number: int) -> _Cursor:
        for cursor in reversed(self._cursors):
            if number in cursor.kept:
                return cursor
        behind = [cursor for cursor in self._cursors if cursor.number <= number]
        if behind:
            return max(behind, key=lambda cursor: cursor.number)
        self._cursors = self._cursors[-(_CURSORS - 1) :]
        self._cursors.append(_Cursor(self._source, self._batch_size, self._seed, self._kept))
        return self._cursors[-1]


class _Cursor:
    """A position in the stream: the number of the next batch, and the cached last batches."""

    def __init__(self, source: Iterable[Any], batch_size: int, seed: int, kept: int) -> None:
        self._source = source
        self._batch_size = batch_size
        self._seed = seed
        self._most = kept
        self._samples = self._endless()
        self.number = 0
        self.kept: dict[int, list[Any]] = {}

    def read_on(self) -> None:
        seed_all(stream_seed(self._seed, self.number))
        samples: list[Any] = []
        try:
            while len(samples) < self._batch_size:
                samples.append(next(self._samples))
        except Exception as error:
            error.add_note(f"in sample {self.number * self._batch_size + len(samples)} of the stream")
            raise
        if len(self.kept) >= self._most:
            self.kept.pop(min(self.kept))
        self.kept[self.number] = samples
        self.number += 1

    def _endless(self) -> Iterator[Any]:
        epoch = 0
        while True:
            if hasattr(self._source, "set_epoch"):
                self._source.set_epoch(epoch)
            is_empty = True
            for sample in self._source:
                is_empty = False
                yield sample
            if is_empty:
                remedy = "return a new iterator for each pass; an exhausted iterator yields nothing"
                bound = "must yield at least one sample in every pass"
                raise ConfigurationError("data", bound, f"none in pass {epoch + 1}", remedy)
            epoch += 1
