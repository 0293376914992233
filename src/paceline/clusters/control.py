"""The words of shared memory by which the driver and the ranks of a local run keep an eye on each other."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from paceline.clusters.pace import slowest
from paceline.links.bells import Bells
from paceline.links.memory import CACHE_LINE, SharedMemory, aligned
from paceline.run import Progress

__all__ = ["Control", "Status"]

_LINE_WORDS = CACHE_LINE // 8
_STOP, _PROGRESS, _UPDATES = 0, 1, 6
_REPORT = struct.Struct("<qdqdd")  # step, loss, samples, seconds, metric


class Status(IntEnum):
    """What the driver knows of a rank."""

    RUNNING = 0
    FINISHED = 1
    LOST = 2


class Control:
    """A line for the run, a line of status a rank, a bell a rank."""

    def __init__(self, memory: SharedMemory, ranks: int, bells: Bells | None = None) -> None:
        """`bells`: of another kind than those that are here, or elsewhere."""
        self._memory = memory
        self._words = memory.words(0, _LINE_WORDS * (1 + ranks))
        self._report = memory.view[8 : 8 + _REPORT.size]
        self.bells = bells or Bells(memory, self.bells_at(ranks), ranks)
        self.ranks = ranks

    @staticmethod
    def nbytes(ranks: int) -> int:
        return aligned(CACHE_LINE * (1 + ranks) + Bells.nbytes(ranks), 4096)

    @staticmethod
    def bells_at(ranks: int) -> int:
        """Where in its memory there is room for the bells."""
        return CACHE_LINE * (1 + ranks)

    @property
    def last_step(self) -> int:
        return self._words[_STOP]

    @last_step.setter
    def last_step(self, step: int) -> None:
        self._words[_STOP] = step

    def status(self, rank: int) -> Status:
        return Status(self._words[_LINE_WORDS * (1 + rank)])

    def set_status(self, rank: int, status: Status) -> None:
        self._words[_LINE_WORDS * (1 + rank)] = status

    def step(self, rank: int) -> int:
        """The step that a rank is in."""
        return self._words[_LINE_WORDS * (1 + rank) + 1]

    def set_step(self, rank: int, step: int) -> None:
        self._words[_LINE_WORDS * (1 + rank) + 1] = step

    def count_update(self) -> int:
        """Count an update; how many there are now. No two ranks are told the same number."""
        # Locks of this kind belong to processes: that of a rank that dies is free.
        fcntl.lockf(self._memory.fd, fcntl.LOCK_EX)
        try:
            self._words[_UPDATES] += 1
            return self._words[_UPDATES]
        finally:
            fcntl.lockf(self._memory.fd, fcntl.LOCK_UN)

    def note_computing(self, rank: int, seconds: float, *, ended: bool) -> None:
        """Add to what a rank has computed. Each writes its own line alone."""
        line = _LINE_WORDS * (1 + rank)
        self._words[line + 2] += int(seconds * 1e9)
        self._words[line + 3] += ended

    def slowest(self, workers: int) -> tuple[int | None, float]:
        """Which of the first ranks, the workers, computes the slowest, and how many times as long as the others."""
        lines = [_LINE_WORDS * (1 + rank) for rank in range(workers)]
        return slowest([self._words[n + 2] * 1e-9 for n in lines], [self._words[n + 3] for n in lines])

    def read_own(self, rank: int) -> dict[str, Any]:
        """What a rank itself writes here, for a copy of these words on another host."""
        line = _LINE_WORDS * (1 + rank)
        return {"line": list(self._words[line + 1 : line + 4]), "report": list(self.read_report())}

    def copy_own(self, rank: int, values: dict[str, Any], *, reports: bool) -> None:
        """Take over what `read_own` gave elsewhere; the run's report too if this rank is the one that writes it."""
        line = _LINE_WORDS * (1 + rank)
        for i, word in enumerate(values["line"]):
            self._words[line + 1 + i] = word
        if reports:
            self.write_report(*values["report"])

    def write_report(self, step: int, loss: float, samples: int, seconds: float, metric: float) -> None:
        """For the driver's progress display, which can bear a torn value now and then."""
        _REPORT.pack_into(self._report, 0, step, loss, samples, seconds, metric)

    def show(self, progress: Callable[[Progress], None], workers: int) -> None:
        """Tell how far the run has come, if it has begun."""
        step, loss, samples, seconds, metric = self.read_report()
        if step:
            known = metric if metric == metric else None
            progress(Progress(step, self.last_step, loss, samples, seconds, known, *self.slowest(workers)))

    def read_report(self) -> tuple[int, float, int, float, float]:
        step, loss, samples, seconds, metric = _REPORT.unpack_from(self._report, 0)
        return step, loss, samples, seconds, metric
