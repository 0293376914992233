"""Loaders: processes that a rank forks to load its next batches while it computes.

A rank determines its batches in advance. It requests each one with a small message. The answer contains the batch in
shared memory. Random numbers are seeded by rank and step, as without loaders. So the result does not depend on which
process loads a batch, or when.

If a loader cannot load a batch, the rank loads it itself. The user's error is then reported as without loaders. Loaders
share the rank's memory as it was at the fork, and die with the rank.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.clusters.process import payload
from paceline.clusters.process.channel import ChannelClosed, Letter
from paceline.clusters.process.loader_process import LoaderProcess, flush_output
from paceline.context import Batch
from paceline.data.samples import Samples
from paceline.errors import DeadlineError, RunError

_log = logging.getLogger("paceline")


@dataclass(slots=True, eq=False)
class _Request:
    """A requested batch."""

    letter: int
    batch: Batch
    number: int
    """Seed of its random numbers."""
    loader: LoaderProcess
    answer: Letter | None = None


class Loaders:
    """A rank's loaders. They satisfy `paceline.data.samples.Source`."""

    def __init__(
        self,
        samples: Samples,
        *,
        count: int,
        prefetch: int,
        rank: int,
        requests_of: Callable[[Batch], Iterable[tuple[Batch, int]]],
        deadline_s: float,
    ) -> None:
        """Fork the loaders.

        `requests_of` returns the parts of a batch that `content` will need, each with its seed.
        """
        self._samples = samples
        self._ready = count * prefetch
        """Number of batches to request in advance."""
        self._rank = rank
        self._requests_of = requests_of
        self._deadline_s = deadline_s
        self._letters = 0
        # A computing thread may wait for its batch while the program requests others or cancels it.
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._unanswered: dict[int, _Request] = {}
        """By message number."""
        self._wanted: dict[Hashable, _Request] = {}
        """Requests that have not been used yet, by batch key."""
        self._has_warned = False
        self._loaders: list[LoaderProcess] = []
        self._end = weakref.finalize(self, _end_all, self._loaders, os.getpid())
        flush_output()  # otherwise its loaders would also print the rank's buffered output
        for each in range(count):
            self._loaders.append(LoaderProcess(each, samples, deadline_s))

    @property
    def pids(self) -> Sequence[int]:
        return [loader.pid for loader in self._loaders]

    def close(self) -> None:
        """End the loaders."""
        self._end()

    # Requests

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the same batches. Before a batch is yielded, the next ones have been requested."""
        upcoming: deque[Batch] = deque()
        try:
            for batch in batches:
                upcoming.append(batch)
                for part, number in self._requests_of(batch):
                    self._ask(part, number)
                if len(upcoming) > self._ready:
                    yield upcoming[0]
                    self._forget(upcoming.popleft())
            while upcoming:
                yield upcoming[0]
                self._forget(upcoming.popleft())
        finally:
            for batch in upcoming:
                self._forget(batch)

    def _ask(self, batch: Batch, number: int) -> None:
        if not batch.count or not self._has_room():
            return
        loader = min(self._loaders, key=lambda each: each.asked)
        request = _Request(self._letters + 1, batch, number, loader)
        with self._lock:
            if self._wanted.setdefault(_key(batch), request) is not request:
                return  # requested by a twin
            self._letters = request.letter
            self._unanswered[request.letter] = request
            loader.asked += 1
        indices = np.ascontiguousarray(batch.indices, dtype=np.int64)
        try:
            loader.channel.send("fetch", {"letter": request.letter, "number": request.number}, [indices])
        except ChannelClosed as closed:
            raise self._death(loader, closed) from None

    def _has_room(self) -> bool:
        """Return whether few enough pending answers are no longer needed."""
        if self._unwanted() > self._ready and self._reading.acquire(blocking=False):
            try:
                for loader in self._loaders:
                    while loader.asked and loader.has_answered(0.0):
                        self._take_letter(loader)
            finally:
                self._reading.release()
        return self._unwanted() <= self._ready

    def _unwanted(self) -> int:
        with self._lock:
            return sum(loader.asked for loader in self._loaders) - len(self._unanswered)

    def _forget(self, batch: Batch) -> None:
        """Drop the requests of a batch that the program no longer needs. It may have cancelled the batch before its
        start."""
        for part, _ in self._requests_of(batch):
            with self._lock:
                request = self._wanted.pop(_key(part), None)
                if request is not None:
                    self._unanswered.pop(request.letter, None)
            if request is not None and request.answer is not None:
                _drop(request.answer)

    # Answers

    def content(self, batch: Batch, number: int) -> Any:
        """Return the samples: see `Source`. A batch that was not requested with this seed is loaded here."""
        with self._lock:
            request = self._wanted.get(_key(batch))
            if request is None or request.number != number:
                request = None
            else:
                del self._wanted[_key(batch)]
        if request is None:
            return self._samples.content(batch, number)
        with self._reading:
            answer = self._wait_for(request)
        if answer.word == "failed":
            self._warn(batch, answer.values["why"])
            return self._samples.content(batch, number)
        (fd,) = answer.fds
        try:
            return payload.load(fd, answer.values["nbytes"])
        finally:
            os.close(fd)

    def _wait_for(self, request: _Request) -> Letter:
        until_s = time.monotonic() + self._deadline_s
        while request.answer is None:
            if not request.loader.has_answered(max(0.0, until_s - time.monotonic())):
                what = f"the samples of step {request.batch.step}"
                whom = f"its loader {request.loader.number}"
                raise DeadlineError(self._rank, what, whom, self._deadline_s)
            self._take_letter(request.loader)
        return request.answer

    def _take_letter(self, loader: LoaderProcess) -> None:
        try:
            letter = loader.channel.receive()
        except ChannelClosed as closed:
            raise self._death(loader, closed) from None
        with self._lock:
            loader.asked -= 1
            request = self._unanswered.pop(letter.values["letter"], None)
            if request is not None:
                request.answer = letter
        if request is None:
            _drop(letter)

    def _death(self, loader: LoaderProcess, closed: ChannelClosed) -> RunError:
        remedy = "if the host is short of memory, use fewer loaders or a smaller prefetch"
        return RunError(f"loader {loader.number} of rank {self._rank} {loader.ending()}, {closed}; {remedy}")

    def _warn(self, batch: Batch, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = "rank %d fetches the batch of step %d itself, because its loader could not: %s"
            _log.warning(text, self._rank, batch.step, why)


def _key(batch: Batch) -> Hashable:
    """Return a key that is equal for equal batches. `whole` is a bound method, or a function of this batch."""
    return batch.step, batch.start, batch.count, batch.whole


def _drop(letter: Letter) -> None:
    for fd in letter.fds:
        os.close(fd)


def _end_all(loaders: list[LoaderProcess], owner: int) -> None:
    if os.getpid() == owner:  # not a child that the user forked
        for loader in loaders:
            loader.end()
