"""The schedule of a whole group as arrays, round by round, for the timer and the counter.

A group plan has the messages of all ranks in one sequence of rounds. It does not describe how data is combined,
because it is used for time and traffic only. Rings of thousands of ranks are planned directly, because their
per-rank schedules would have hundreds of millions of steps. Every other plan is made from per-rank schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from paceline.schedules.collectives.align import waves
from paceline.schedules.collectives.matching import Match, match
from paceline.schedules.collectives.steps import Schedule, chunk_bounds

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Pairing:
    """Senders and receivers of a round.

    Rounds with the same pairing share one object, so that derived data is computed once.
    """

    sources: Ints
    """Senders. The sends of one rank are in the order in which it issues them."""
    targets: Ints
    shift: int | None = None
    """If not None, every rank r sends one message, to r + shift, and the sources are 0, 1, 2, …"""


@dataclass(frozen=True, eq=False, slots=True)
class GroupRound:
    """All messages of one round: message i carries the chunks `starts[i]` to `stops[i]` of its sender."""

    pairing: Pairing
    starts: Ints
    stops: Ints


@dataclass(frozen=True, eq=False, slots=True)
class GroupPlan:
    """The schedule of a whole group. A rank starts a round when its previous round has ended."""

    size: int
    chunks: int
    messages: int
    depth: int
    """Number of rounds."""
    rounds: Callable[[], Iterator[GroupRound]]
    """Function that yields the rounds, created one at a time. It may be called again."""
    scratch: int = 1


def chunk_offsets(length: int, chunks: int, scratch: int, bounds: Sequence[int] | None = None) -> Ints:
    """Return the start of each chunk of the data, or of a scratch buffer of several tensors, and then the end.

    `bounds` are for chunks that are not nearly equal.
    """
    starts = np.array(chunk_bounds(length, chunks) if bounds is None else bounds, np.int64)[:-1]
    copies = np.arange(scratch, dtype=np.int64)[:, None] * length + starts
    return np.append(copies.ravel(), scratch * length)


def shifted_chunks(size: int, moves: Sequence[tuple[int, int]]) -> GroupPlan:
    """Return a plan with one round for each move (shift, offset): rank r sends chunk r + offset to r + shift."""

    def rounds() -> Iterator[GroupRound]:
        # The chunk numbers, repeated twice. Every rotation of them is then a view of this array, without a copy.
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
    """Return the plans one after another, on the same chunks."""
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
    """Return the plan of several groups that run `plan` at the same time. Together they form a larger group.

    Row g of `members` has the ranks of group g. Its chunk c is the `width` chunks from `offsets[g] + c * width`.
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
    """Return the plan of per-rank schedules.

    Two ranks may have the same exchange in rounds of different numbers. Empty rounds, which take no time, are
    inserted until every message is sent and received in rounds of the same number.
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
