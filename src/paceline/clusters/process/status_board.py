"""The words of shared memory by which the driver and the ranks of a local run keep an eye on each other."""

from __future__ import annotations

import fcntl
import struct
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from paceline.clusters.rank.counter import LATE
from paceline.clusters.rank.pace import slowest
from paceline.links.bells import Bells
from paceline.links.clock import StoppableClock
from paceline.links.memory import CACHE_LINE, SharedMemory, aligned
from paceline.links.operation import Doing
from paceline.run import Progress

__all__ = ["Activity", "Status", "StatusBoard"]

_LINE_WORDS = CACHE_LINE // 8
_STOP, _PROGRESS, _UPDATES, _CLOCK, _METRIC, _UPDATES_FROM, _SAID, _ASKED = 0, 1, 6, 7, 8, 9, 10, 14
_LEGS = 4  # of which it is kept: the reporter may have begun the next leg while others end the last one
_HEAD_LINES = 2  # before the lines of the ranks
# A rank's line: its status is the driver's to write, the rest its own.
_STATUS, _STEP, _COMPUTING_NS, _COMPUTATIONS, _DOING, _SINCE_NS = range(6)
_NOBODY, _SEVERAL = 0, 0xFFFF  # in the place of a rank, which is written plus one
_REPORT = struct.Struct("<qdqdd")  # step, loss, samples, seconds, metric
_DOUBLE, _WORD = struct.Struct("<d"), struct.Struct("<q")


class Status(IntEnum):
    """What the driver knows of a rank."""

    RUNNING = 0
    FINISHED = 1
    LOST = 2


class Activity(NamedTuple):
    """What a rank says of itself."""

    doing: Doing
    awaited: int | None
    """The rank that it waits for. None: nobody, or any of several (`awaits_several`)."""
    awaits_several: bool
    since_s: float
    """When it began, on this host's monotonic clock."""
    step: int


class StatusBoard:
    """A line for the run, a line of status a rank, a bell a rank."""

    def __init__(self, memory: SharedMemory, ranks: int, bells: Bells | None = None) -> None:
        """`bells`: given where they are of another kind, or in other memory."""
        self._memory = memory
        self._words = memory.words(0, _LINE_WORDS * (_HEAD_LINES + ranks))
        self._report = memory.view[8 : 8 + _REPORT.size]
        self.bells = bells or Bells(memory, self.bells_at(ranks), ranks)
        self.clock = StoppableClock(self._words, _CLOCK)
        """Of the run, where machines are emulated. The reporter may stop it."""
        self.ranks = ranks

    @staticmethod
    def nbytes(ranks: int) -> int:
        return aligned(CACHE_LINE * (_HEAD_LINES + ranks) + Bells.nbytes(ranks), 4096)

    @staticmethod
    def bells_at(ranks: int) -> int:
        """Where in the board's memory the bells are."""
        return CACHE_LINE * (_HEAD_LINES + ranks)

    @property
    def last_step(self) -> int:
        return self._words[_STOP]

    @last_step.setter
    def last_step(self, step: int) -> None:
        self._words[_STOP] = step

    @property
    def stop(self) -> bool:
        """Whether the run is to end, and to be kept."""
        return bool(self._words[_ASKED])

    @stop.setter
    def stop(self, stop: bool) -> None:
        self._words[_ASKED] = stop

    def said(self, leg: int) -> int:
        """What the reporter has said of a leg's end; where it has said nothing, what it said of one long ago."""
        return self._words[_SAID + leg % _LEGS]

    def say(self, leg: int, word: int) -> None:
        self._words[_SAID + leg % _LEGS] = word

    @property
    def metric(self) -> float:
        """What the reporter last announced. It is one word, so that it is whole."""
        value: float = _DOUBLE.unpack(_WORD.pack(self._words[_METRIC]))[0]
        return value

    @metric.setter
    def metric(self, metric: float) -> None:
        self._words[_METRIC] = _WORD.unpack(_DOUBLE.pack(metric))[0]

    def status(self, rank: int) -> Status:
        return Status(self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STATUS])

    def set_status(self, rank: int, status: Status) -> None:
        self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STATUS] = status

    def step(self, rank: int) -> int:
        """The step that a rank is in."""
        return self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STEP]

    def set_step(self, rank: int, step: int) -> None:
        self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STEP] = step

    def note_doing(self, rank: int, doing: Doing, awaited: Sequence[int] = ()) -> None:
        """Say what this rank does from now on, and whom it waits for."""
        line, first = _LINE_WORDS * (_HEAD_LINES + rank), awaited[0] + 1 if awaited else _NOBODY
        # At a barrier a rank waits for all that are missing: to name the first is enough.
        several = len(awaited) > 1 and doing is not Doing.barrier
        self._words[line + _SINCE_NS] = time.monotonic_ns()
        self._words[line + _DOING] = doing | (_SEVERAL if several else first) << 8

    def activity(self, rank: int) -> Activity:
        """What a rank has said of itself."""
        line = _LINE_WORDS * (_HEAD_LINES + rank)
        doing, awaited = Doing(self._words[line + _DOING] & 0xFF), self._words[line + _DOING] >> 8
        one = awaited - 1 if awaited not in (_NOBODY, _SEVERAL) else None
        since_s = self._words[line + _SINCE_NS] * 1e-9
        return Activity(doing, one, awaited == _SEVERAL, since_s, self._words[line + _STEP])

    def count_update(self, first: int) -> int:
        """Count an update of the leg that began with a step; how many there are now. See `UpdateCounter`."""
        words = self._words
        # Locks of this kind belong to processes: that of a rank that dies is free.
        fcntl.lockf(self._memory.fd, fcntl.LOCK_EX)
        try:
            if first > words[_UPDATES_FROM]:
                words[_UPDATES_FROM] = words[_UPDATES] = first
            if first < words[_UPDATES_FROM]:
                return LATE
            words[_UPDATES] += 1
            return words[_UPDATES]
        finally:
            fcntl.lockf(self._memory.fd, fcntl.LOCK_UN)

    def note_computing(self, rank: int, seconds: float, *, ended: bool) -> None:
        """Add to what a rank has computed. Each writes its own line alone."""
        line = _LINE_WORDS * (_HEAD_LINES + rank)
        self._words[line + _COMPUTING_NS] += int(seconds * 1e9)
        self._words[line + _COMPUTATIONS] += ended

    def slowest(self, workers: int) -> tuple[int | None, float]:
        """The worker that computes the slowest, and how many times as long as the others it takes."""
        lines = [_LINE_WORDS * (_HEAD_LINES + rank) for rank in range(workers)]
        return slowest(
            [self._words[n + _COMPUTING_NS] * 1e-9 for n in lines],
            [self._words[n + _COMPUTATIONS] for n in lines],
        )

    def read_own(self, rank: int) -> dict[str, Any]:
        """The words that a rank itself writes, to be copied to another host."""
        line = _LINE_WORDS * (_HEAD_LINES + rank)
        own = list(self._words[line + _STEP : line + _SINCE_NS + 1])
        own[-1] = time.monotonic_ns() - own[-1]  # another host has another clock
        return {"line": own, "report": list(self.read_report())}

    def copy_own(self, rank: int, values: dict[str, Any], *, reports: bool) -> None:
        """Take over what `read_own` gave elsewhere; the run's report too if this rank is the one that writes it."""
        line, own = _LINE_WORDS * (_HEAD_LINES + rank) + _STEP, values["line"]
        for i, word in enumerate((*own[:-1], time.monotonic_ns() - own[-1])):
            self._words[line + i] = word
        if reports:
            self.write_report(*values["report"])

    def write_report(self, step: int, loss: float, samples: int, seconds: float, metric: float) -> None:
        """For the driver's progress display, which may show a torn value now and then."""
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
