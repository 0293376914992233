"""The schedule of a whole group as arrays, round by round: what the timer and the counter read.

A group plan has the messages of all ranks in one sequence of rounds. It says nothing of what is combined with
what: it is for time and traffic. Rings of thousands of ranks are planned directly, since their per-rank
schedules would be hundreds of millions of steps; every other plan is made from per-rank schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from paceline.schedules.align import waves
from paceline.schedules.matching import Match, match
from paceline.schedules.steps import Schedule, chunk_bounds

__all__ = [
    "GroupPlan",
    "GroupRound",
    "Ints",
    "Pairing",
    "chunk_offsets",
    "in_sequence",
    "plan_of_schedules",
    "shifted_chunks",
    "side_by_side",
]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Pairing:
    """Who sends to whom in a round. Rounds of one pairing share the object, so work on it is done once."""

    sources: Ints
    """A rank's sends in the order in which it issues them."""
    targets: Ints
    shift: int | None = None
    """If given, every rank r sends one message, to r + shift, and the sources are 0, 1, 2, …"""


@dataclass(frozen=True, eq=False, slots=True)
class GroupRound:
    """All messages of one round: message i carries the chunks `starts[i]` to `stops[i]` of its sender."""

    pairing: Pairing
    starts: Ints
    stops: Ints


@dataclass(frozen=True, eq=False, slots=True)
class GroupPlan:
    """What a whole group does. A rank's part in a round begins when its part in the one before has ended."""

    size: int
    chunks: int
    messages: int
    depth: int
    """How many rounds there are."""
    rounds: Callable[[], Iterator[GroupRound]]
    """The rounds, made one at a time; may be called again."""
    scratch: int = 1


def chunk_offsets(length: int, chunks: int, scratch: int, bounds: Sequence[int] | None = None) -> Ints:
    """Where each chunk of the data, or of a scratch buffer of several tensors, begins; last, the end.

    `bounds` are those of chunks that are not nearly equal.
    """
    starts = np.array(chunk_bounds(length, chunks) if bounds is None else bounds, np.int64)[:-1]
    copies = np.arange(scratch, dtype=np.int64)[:, None] * length + starts
    return np.append(copies.ravel(), scratch * length)


def shifted_chunks(size: int, moves: Sequence[tuple[int, int]]) -> GroupPlan:
    """For each move (shift, offset), a round in which every rank r sends chunk r + offset to r + shift."""

    def rounds() -> Iterator[GroupRound]:
        # Twice around the ring: every rotation of the chunk numbers is a view of it, and costs nothing.
        starts = np.tile(np.arange(size, dtype=np.int64), 2)
        stops = starts + 1
        for shift, offset in moves:
            first = offset % size
            window = slice(first, first + size)
            yield GroupRound(_shift(size, shift), starts[window], stops[window])

    return GroupPlan(size, size, size * len(moves), len(moves), rounds)


@lru_cache(maxsize=64)
def _shift(size: int, shift: int) -> Pairing:
    ranks = np.arange(size, dtype=np.int64)
    return Pairing(ranks, (ranks + shift) % size, shift)


def in_sequence(plans: Sequence[GroupPlan]) -> GroupPlan:
    """One plan after another, on the same chunks."""
    first = plans[0]
    return GroupPlan(
        first.size,
        first.chunks,
        sum(plan.messages for plan in plans),
        sum(plan.depth for plan in plans),
        lambda: chain.from_iterable(plan.rounds() for plan in plans),
        max(plan.scratch for plan in plans),
    )


def side_by_side(plan: GroupPlan, members: Ints, *, width: int, offsets: Ints) -> GroupPlan:
    """The same plan run by several groups at once, which together are the ranks of a larger group.

    Row g of `members` has the ranks of group g; its chunk c is the `width` chunks from
    `offsets[g] + c * width`.
    """
    groups = len(members)

    @lru_cache(maxsize=8)
    def spread(pairing: Pairing) -> Pairing:
        return Pairing(members[:, pairing.sources].ravel(), members[:, pairing.targets].ravel())

    def rounds() -> Iterator[GroupRound]:
        base = offsets[:, None]
        for part in plan.rounds():
            starts, stops = base + part.starts * width, base + part.stops * width
            yield GroupRound(spread(part.pairing), starts.ravel(), stops.ravel())

    chunks = int(offsets.max()) + plan.chunks * width
    return GroupPlan(members.size, chunks, plan.messages * groups, plan.depth, rounds)


def plan_of_schedules(schedules: Sequence[Schedule]) -> GroupPlan:
    """The plan of per-rank schedules.

    Ranks may do the same exchange in rounds of different numbers. A round that does nothing takes no time, so
    ranks are delayed by empty rounds until every message is sent and received in the same round.
    """
    matches = match(schedules)
    rounds = [_group_round(messages) for messages in waves(matches)]
    scratch = max(schedule.scratch for schedule in schedules)
    first = schedules[0]
    return GroupPlan(len(schedules), first.chunks, len(matches), len(rounds), lambda: iter(rounds), scratch)


def _group_round(matches: Sequence[Match]) -> GroupRound:
    columns = [(m.sender.rank, m.receiver.rank, m.sent.start, m.sent.stop) for m in matches]
    sources, targets, starts, stops = np.array(columns, np.int64).T.copy()
    return GroupRound(Pairing(sources, targets), starts, stops)
