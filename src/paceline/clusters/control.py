"""The words of shared memory by which the driver and the ranks of a local run keep an eye on each other."""

from __future__ import annotations

import struct
from enum import IntEnum

from paceline.links.bells import Bells
from paceline.links.memory import CACHE_LINE, SharedMemory, aligned

__all__ = ["Control", "Status"]

_LINE_WORDS = CACHE_LINE // 8
_STOP, _PROGRESS = 0, 1
_REPORT = struct.Struct("<qdqdd")  # step, loss, samples, seconds, metric


class Status(IntEnum):
    """What the driver knows of a rank."""

    RUNNING = 0
    FINISHED = 1
    LOST = 2


class Control:
    """A line for the run, a line of status a rank, a bell a rank."""

    def __init__(self, memory: SharedMemory, ranks: int) -> None:
        self._words = memory.words(0, _LINE_WORDS * (1 + ranks))
        self._report = memory.view[8 : 8 + _REPORT.size]
        self.bells = Bells(memory, CACHE_LINE * (1 + ranks), ranks)
        self.ranks = ranks

    @staticmethod
    def nbytes(ranks: int) -> int:
        return aligned(CACHE_LINE * (1 + ranks) + Bells.nbytes(ranks), 4096)

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

    def write_report(self, step: int, loss: float, samples: int, seconds: float, metric: float) -> None:
        """For the driver's progress display, which can bear a torn value now and then."""
        _REPORT.pack_into(self._report, 0, step, loss, samples, seconds, metric)

    def read_report(self) -> tuple[int, float, int, float, float]:
        step, loss, samples, seconds, metric = _REPORT.unpack_from(self._report, 0)
        return step, loss, samples, seconds, metric
