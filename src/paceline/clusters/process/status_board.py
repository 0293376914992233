"""Status board: shared memory in which the driver and the ranks of a local run publish their state."""

from __future__ import annotations

import fcntl
import struct
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from paceline.clusters.rank.counter import LATE
from paceline.clusters.rank.slow_ranks import slowest
from paceline.links.clock import StoppableClock
from paceline.links.memory.bells import Bells
from paceline.links.memory.shared import CACHE_LINE, SharedMemory, aligned
from paceline.links.operation import Activity
from paceline.runs.run import Progress

_LINE_WORDS = CACHE_LINE // 8
_STOP, _PROGRESS, _UPDATES, _CLOCK, _UPDATES_FROM, _ENDS, _ASKED = 0, 1, 6, 7, 9, 10, 14
_METRICS = (8, 15)  # slots for the last two evaluations, because a slow rank may read the older one
_END_SLOTS = 4  # slots for generation ends: a slow rank may still need the one before
_MEMBERS = 16
_HEAD_LINES = 3  # before the lines of the ranks
# Line of a rank: the driver writes the first and the last word, the rank writes the rest. The driver of a local run
# also writes the processor time, because a rank cannot do so while it computes.
_STATUS, _STEP, _COMPUTING_NS, _COMPUTATIONS, _DOING, _PROCESSOR_NS, _SINCE_NS, _AWAITED_WORK = range(8)
_NOBODY, _SEVERAL = 0, 0xFFFF  # special values of the awaited rank, which is stored plus one
_REPORT = struct.Struct("<qdqdd")  # step, loss, samples, seconds, metric
_DOUBLE, _WORD = struct.Struct("<d"), struct.Struct("<q")


class Status(IntEnum):
    """Status of a rank, set by the driver."""

    RUNNING = 0
    FINISHED = 1
    LOST = 2


class RankActivity(NamedTuple):
    """Current activity of a rank, written by the rank."""

    doing: Activity
    awaited: int | None
    """Awaited rank. None if there is none, or if there are several (`awaits_several`)."""
    awaits_several: bool
    since_s: float
    """Start of the activity, on this host's monotonic clock."""
    step: int


class StatusBoard:
    """Shared memory with the run's words, one status line for each rank, and one bell for each rank."""

    def __init__(self, memory: SharedMemory, ranks: int, bells: Bells | None = None) -> None:
        """Open a board. Pass `bells` if they are of another kind or in other memory."""
        self._memory = memory
        self._words = memory.words(0, _LINE_WORDS * (_HEAD_LINES + ranks))
        self._report = memory.view[8 : 8 + _REPORT.size]
        self.bells = bells or Bells(memory, self.bells_at(ranks), ranks)
        self.clock = StoppableClock(self._words, _CLOCK)
        """Clock of the run, if machines are emulated. The reporter may stop it."""
        self.ranks = ranks

    @staticmethod
    def nbytes(ranks: int) -> int:
        return aligned(CACHE_LINE * (_HEAD_LINES + ranks) + Bells.nbytes(ranks), 4096)

    @staticmethod
    def bells_at(ranks: int) -> int:
        """Return the offset of the bells in the board's memory."""
        return CACHE_LINE * (_HEAD_LINES + ranks)

    @property
    def last_step(self) -> int:
        return self._words[_STOP]

    @last_step.setter
    def last_step(self, step: int) -> None:
        self._words[_STOP] = step

    @property
    def stop(self) -> bool:
        """Whether the run must end and write a checkpoint."""
        return bool(self._words[_ASKED])

    @stop.setter
    def stop(self, stop: bool) -> None:
        self._words[_ASKED] = stop

    def announced_end(self, generation: int) -> int:
        """Return the announced end of a generation. If none was announced, return that slot's old value."""
        return self._words[_ENDS + generation % _END_SLOTS]

    def announce_end(self, generation: int, word: int) -> None:
        self._words[_ENDS + generation % _END_SLOTS] = word

    @property
    def wanted_generation(self) -> int:
        """Number of the generation of members that is to begin, or has begun."""
        return self._words[_MEMBERS]

    @wanted_generation.setter
    def wanted_generation(self, number: int) -> None:
        self._words[_MEMBERS] = number

    def metric(self, evaluation: int) -> float:
        """Return the metric of one of the last two evaluations. It is one word, so it is never torn."""
        value: float = _DOUBLE.unpack(_WORD.pack(self._words[_METRICS[evaluation % 2]]))[0]
        return value

    def set_metric(self, evaluation: int, metric: float) -> None:
        self._words[_METRICS[evaluation % 2]] = _WORD.unpack(_DOUBLE.pack(metric))[0]

    def status(self, rank: int) -> Status:
        return Status(self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STATUS])

    def set_status(self, rank: int, status: Status) -> None:
        self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STATUS] = status

    def step(self, rank: int) -> int:
        """Return the step that a rank is in."""
        return self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STEP]

    def set_step(self, rank: int, step: int) -> None:
        self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _STEP] = step

    def note_doing(self, rank: int, doing: Activity, awaited: Sequence[int] = ()) -> None:
        """Publish what this rank does from now on, and the ranks that it waits for."""
        line, first = _LINE_WORDS * (_HEAD_LINES + rank), awaited[0] + 1 if awaited else _NOBODY
        # At a barrier a rank waits for all missing ranks: the first one is enough.
        several = len(awaited) > 1 and doing is not Activity.barrier
        self._words[line + _SINCE_NS] = time.monotonic_ns()
        self._words[line + _DOING] = doing | (_SEVERAL if several else first) << 8

    def activity(self, rank: int) -> RankActivity:
        """Return what a rank has published about itself."""
        line = _LINE_WORDS * (_HEAD_LINES + rank)
        doing, awaited = Activity(self._words[line + _DOING] & 0xFF), self._words[line + _DOING] >> 8
        one = awaited - 1 if awaited not in (_NOBODY, _SEVERAL) else None
        since_s = self._words[line + _SINCE_NS] * 1e-9
        return RankActivity(doing, one, awaited == _SEVERAL, since_s, self._words[line + _STEP])

    def processor_ns(self, rank: int) -> int:
        """Return the processor time that a rank has used, as last published."""
        return self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _PROCESSOR_NS]

    def set_processor_ns(self, rank: int, processor_ns: int) -> None:
        self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _PROCESSOR_NS] = processor_ns

    def awaited_work(self, rank: int) -> int:
        """Return in how many intervals so far a rank that this rank waits for has computed: see `AwaitedWork`."""
        return self._words[_LINE_WORDS * (_HEAD_LINES + rank) + _AWAITED_WORK]

    def note_awaited_work(self, rank: int, intervals: int | None = None) -> None:
        """Count one more interval, or store the count from another host."""
        at = _LINE_WORDS * (_HEAD_LINES + rank) + _AWAITED_WORK
        self._words[at] = self._words[at] + 1 if intervals is None else intervals

    def count_update(self, first: int) -> int:
        """Count an update of the generation that began with step `first`. Return the total. See `UpdateCounter`."""
        words = self._words
        # These locks belong to processes: the lock of a dead rank is free.
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
        """Add to a rank's computing time. Each rank writes only its own line."""
        line = _LINE_WORDS * (_HEAD_LINES + rank)
        self._words[line + _COMPUTING_NS] += int(seconds * 1e9)
        self._words[line + _COMPUTATIONS] += ended

    def slowest(self, workers: int) -> tuple[int | None, float]:
        """Return the slowest worker, and the ratio of its time to the median of the others."""
        lines = [_LINE_WORDS * (_HEAD_LINES + rank) for rank in range(workers)]
        return slowest(
            [self._words[n + _COMPUTING_NS] * 1e-9 for n in lines],
            [self._words[n + _COMPUTATIONS] for n in lines],
        )

    def read_own(self, rank: int) -> dict[str, Any]:
        """Return the words that a rank itself writes, to copy them to another host."""
        line = _LINE_WORDS * (_HEAD_LINES + rank)
        own = list(self._words[line + _STEP : line + _SINCE_NS + 1])
        own[-1] = time.monotonic_ns() - own[-1]  # another host has another clock
        return {"line": own, "report": list(self.read_report())}

    def copy_own(self, rank: int, values: dict[str, Any], *, reports: bool) -> None:
        """Store the result of `read_own` from another host. With `reports`, also store the run's report."""
        line, own = _LINE_WORDS * (_HEAD_LINES + rank) + _STEP, values["line"]
        for i, word in enumerate((*own[:-1], time.monotonic_ns() - own[-1])):
            self._words[line + i] = word
        if reports:
            self.write_report(*values["report"])

    def write_report(self, step: int, loss: float, samples: int, seconds: float, metric: float) -> None:
        """Write the values for the driver's progress display. It may rarely show a torn value."""
        _REPORT.pack_into(self._report, 0, step, loss, samples, seconds, metric)

    def show(self, progress: Callable[[Progress], None], workers: int) -> None:
        """Report the progress of the run, if it has started."""
        step, loss, samples, seconds, metric = self.read_report()
        if step:
            known = metric if metric == metric else None
            present = sum(self.status(rank) is not Status.LOST for rank in range(workers))
            found = (step, self.last_step, loss, samples, seconds, known, *self.slowest(workers))
            progress(Progress(*found, workers=present))

    def read_report(self) -> tuple[int, float, int, float, float]:
        step, loss, samples, seconds, metric = _REPORT.unpack_from(self._report, 0)
        return step, loss, samples, seconds, metric
