"""Messages and bytes of a schedule, counted from the schedule itself; the published formulas must come out.

A message of no bytes is still a message, since the interpreter sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.matching import match
from paceline.schedules.network import Floats, NetworkCosts, chunk_bytes
from paceline.schedules.plan import GroupPlan, Ints, plan_of_schedules
from paceline.schedules.steps import Chunks, Schedule
from paceline.schedules.wavefront import run_wavefront

__all__ = ["Traffic", "count"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What each rank sends and receives, by rank."""

    messages_sent: tuple[int, ...]
    messages_received: tuple[int, ...]
    bytes_sent: tuple[int, ...]
    bytes_received: tuple[int, ...]
    sequence: int
    """The longest chain of messages, where a port takes one at a time, in the order of the rounds."""


def count(
    group: GroupPlan | Sequence[Schedule], length: int, itemsize: int, bounds: Sequence[int] | None = None
) -> Traffic:
    """Count what a collective on `length` elements of `itemsize` bytes moves; `bounds` are those of uneven chunks."""
    size = group.size if isinstance(group, GroupPlan) else len(group)
    totals = np.zeros((4, size))
    for sources, targets, size_bytes in _messages(group, length, itemsize, bounds):
        totals[0] += np.bincount(sources, minlength=size)
        totals[1] += np.bincount(targets, minlength=size)
        totals[2] += np.bincount(sources, size_bytes, size)
        totals[3] += np.bincount(targets, size_bytes, size)
    sent, received, bytes_sent, bytes_received = (tuple(map(int, row)) for row in totals)
    plan = group if isinstance(group, GroupPlan) else plan_of_schedules(group)
    return Traffic(sent, received, bytes_sent, bytes_received, _sequence(plan))


def _messages(
    group: GroupPlan | Sequence[Schedule], length: int, itemsize: int, bounds: Sequence[int] | None
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Sources, targets and bytes of all messages, a round at a time or all at once."""
    if isinstance(group, GroupPlan):
        size_of = chunk_bytes(length, itemsize, group.chunks, group.scratch, bounds)
        for part in group.rounds():
            yield part.pairing.sources, part.pairing.targets, size_of(part.starts, part.stops)
        return
    scratch = max(schedule.scratch for schedule in group)
    size_of = chunk_bytes(length, itemsize, group[0].chunks, scratch, bounds)
    rows = [(m.sender.rank, m.receiver.rank, *_range(m.sent), *_range(m.received)) for m in match(group)]
    sources, targets, *ranges = np.array(rows, np.int64).reshape(-1, 6).T
    size_bytes = size_of(ranges[0], ranges[1])
    if (size_bytes != size_of(ranges[2], ranges[3])).any():
        bound = f"must be a multiple of {group[0].chunks}, since chunks take each other's place"
        raise ConfigurationError("length", bound, length, "pad the data")
    yield sources, targets, size_bytes


def _range(chunks: Chunks) -> tuple[int, int]:
    return chunks.start, chunks.stop


def _sequence(plan: GroupPlan) -> int:
    """Messages in sequence are seconds, where each message holds its two ports for one second."""

    def one(first: Ints, _: Ints) -> Floats:
        return np.ones(len(first))

    def none(first: Ints, _: Ints) -> Floats:
        return np.zeros(len(first))

    idle = np.zeros(plan.size)
    network = NetworkCosts(size_bytes=one, latency_s=none, seconds_per_byte=one)
    finish, _, _ = run_wavefront(plan, network, idle, idle, idle, overtaking=False)
    return int(finish.max())
