"""Messages and bytes of a schedule, counted from the schedule itself. The counts must match the published formulas.

A message of zero bytes counts as a message, because the interpreter sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.collectives.matching import match
from paceline.schedules.collectives.network import Floats, NetworkCosts, chunk_bytes
from paceline.schedules.collectives.plan import GroupPlan, Ints, plan_of_schedules
from paceline.schedules.collectives.steps import Chunks, Schedule
from paceline.schedules.collectives.wavefront import run_wavefront


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages and bytes sent and received, by rank."""

    messages_sent: tuple[int, ...]
    messages_received: tuple[int, ...]
    bytes_sent: tuple[int, ...]
    bytes_received: tuple[int, ...]
    sequence: int
    """Length of the longest chain of messages, if a port handles one at a time in the order of the rounds."""


def count(
    group: GroupPlan | Sequence[Schedule], length: int, itemsize: int, bounds: Sequence[int] | None = None
) -> Traffic:
    """Count the traffic of a collective on `length` elements of `itemsize` bytes. `bounds` are for uneven chunks."""
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
    """Yield sources, targets and bytes of all messages, one round at a time or all at once."""
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
        bound = f"must be a multiple of {group[0].chunks}, because chunks replace each other"
        raise ConfigurationError("length", bound, length, "pad the data")
    yield sources, targets, size_bytes


def _range(chunks: Chunks) -> tuple[int, int]:
    return chunks.start, chunks.stop


def _sequence(plan: GroupPlan) -> int:
    """Return the longest chain of messages: the finish time if each message occupies its two ports for one second."""

    def one(first: Ints, _: Ints) -> Floats:
        return np.ones(len(first))

    def none(first: Ints, _: Ints) -> Floats:
        return np.zeros(len(first))

    idle = np.zeros(plan.size)
    network = NetworkCosts(size_bytes=one, latency_s=none, seconds_per_byte=one)
    finish, _, _ = run_wavefront(plan, network, idle, idle, idle, overtaking=False)
    return int(finish.max())
