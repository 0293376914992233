"""Detects rounds with data races between their steps, and steps on chunks that do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.schedules.collectives.matching import Position, ScheduleError
from paceline.schedules.collectives.steps import Accumulate, Buffer, Chunks, Copy, Round, Schedule, Send, Step


class _Access(NamedTuple):
    buffer: str
    start: int
    stop: int
    writes: bool
    step: int


def check_hazards(schedules: Sequence[Schedule]) -> None:
    """Raise `ScheduleError` if a step writes chunks that this or another step of the same round also reads or
    writes."""
    for rank, schedule in enumerate(schedules):
        for number, steps in enumerate(schedule.rounds):
            _check_round(rank, number, steps, schedule)


def _check_round(rank: int, number: int, steps: Round, schedule: Schedule) -> None:
    accesses = []
    for index, step in enumerate(steps):
        for chunks, writes in _touched(step):
            _check_exists(Position(rank, number, index), step, chunks, schedule)
            if chunks.start < chunks.stop:
                accesses.append(_Access(chunks.buffer.value, chunks.start, chunks.stop, writes, index))
    # Accesses are sorted by start, so it is enough to compare each with the access that has the largest end so far.
    reads: _Access | None = None
    writes_: _Access | None = None
    for access in sorted(accesses):
        for earlier in (writes_, reads if access.writes else None):
            if earlier and earlier.buffer == access.buffer and access.start < earlier.stop:
                problem = (
                    f"touches chunks that step {earlier.step} of the same round touches, and one writes them"
                )
                raise ScheduleError(
                    Position(rank, number, access.step), steps[access.step], problem, "hazard"
                )
        if access.writes:
            writes_ = _farther(writes_, access)
        else:
            reads = _farther(reads, access)


def _farther(one: _Access | None, other: _Access) -> _Access:
    return one if one and one.buffer == other.buffer and one.stop > other.stop else other


def _touched(step: Step) -> Iterator[tuple[Chunks, bool]]:
    """Yield the chunks that a step accesses, and whether it writes them."""
    if isinstance(step, Copy | Accumulate):
        yield step.source, False
        yield step.target, True
    else:
        yield step.chunks, not isinstance(step, Send)


def _check_exists(place: Position, step: Step, chunks: Chunks, schedule: Schedule) -> None:
    limit = schedule.chunks * (schedule.scratch if chunks.buffer is Buffer.SCRATCH else 1)
    if not 0 <= chunks.start <= chunks.stop <= limit:
        raise ScheduleError(place, step, f"chunks must be a range within 0 to {limit}", "chunks")
