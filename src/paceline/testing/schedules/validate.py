"""Validates the schedules of a group by executing them symbolically.

A send waits for its receiver here (nothing is buffered). This is the strictest case: a schedule that completes here
completes on any cluster. Four errors are found: a message without a sender or receiver, or with two different sizes; a
round with a data race; a deadlock; and a result that differs from the goal, or that ranks sum in different orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from paceline.errors import UnknownNameError
from paceline.schedules.collectives.matching import Match, Position, ScheduleError, match, steps_of
from paceline.schedules.collectives.steps import (
    Accumulate,
    Buffer,
    Chunks,
    Copy,
    Recv,
    Reduce,
    Schedule,
    Send,
    Step,
)
from paceline.testing.schedules.goals import CHUNK_PER_RANK, GOALS
from paceline.testing.schedules.hazards import check_hazards
from paceline.testing.schedules.symbolic import Expressions, ranks_of

__all__ = ["ScheduleError", "validate"]


def validate(schedules: Sequence[Schedule], goal: str, root: int = 0) -> None:
    """Raise `ScheduleError` unless the schedules, one for each rank, reach the goal (a key of `GOALS`)."""
    if goal not in GOALS:
        raise UnknownNameError("goal", goal, GOALS)
    _check_layout(schedules, goal)
    check_hazards(schedules)
    matches = match(schedules)
    _check_sizes(schedules, matches, even=goal == "all-to-all")
    run = _Run(schedules, matches)
    run.to_the_end()
    run.check_data(goal, root)
    if goal == "barrier":
        run.check_heard()


def _check_layout(schedules: Sequence[Schedule], goal: str) -> None:
    chunks = len(schedules) if goal in CHUNK_PER_RANK else schedules[0].chunks
    for rank, schedule in enumerate(schedules):
        if schedule.chunks != chunks:
            problem = f"cuts the data into {schedule.chunks} chunks instead of {chunks}"
            raise ScheduleError(Position(rank, 0, 0), None, problem, "chunks")


def _check_sizes(schedules: Sequence[Schedule], matches: Sequence[Match], *, even: bool) -> None:
    """Check that chunks are moved only to chunks of the same number, because chunks may differ in length."""
    chunks = schedules[0].chunks
    for place, source, target in _moves(schedules, matches):
        same_count = source.stop - source.start == target.stop - target.start
        if not same_count or (not even and (source.start - target.start) % chunks):
            problem = f"is given {source} for {target}: they may differ in length"
            raise ScheduleError(place, _step(schedules, place), problem, "chunks")


def _moves(
    schedules: Sequence[Schedule], matches: Sequence[Match]
) -> Iterator[tuple[Position, Chunks, Chunks]]:
    """Yield every transfer of chunks: messages and local steps."""
    for message in matches:
        yield message.receiver, message.sent, message.received
    for place, step in steps_of(schedules):
        if isinstance(step, Copy | Accumulate):
            yield place, step.source, step.target


def _step(schedules: Sequence[Schedule], place: Position) -> Step:
    return schedules[place.rank].rounds[place.round][place.step]


class _Run:
    """The state of all ranks during the execution."""

    def __init__(self, schedules: Sequence[Schedule], matches: Sequence[Match]) -> None:
        self.schedules = schedules
        self.expressions = Expressions()
        self.values = [self._initial(rank) for rank in range(len(schedules))]
        self.round = [-1] * len(schedules)
        self.unfinished: list[set[int]] = [set() for _ in schedules]
        """Steps of each rank's current round that still wait for the other end of their message."""
        self.other_end = {m.sender: m.receiver for m in matches} | {m.receiver: m.sender for m in matches}
        # A rank sends what it knew before the round, because the steps within a round are unordered.
        self.heard = [1 << rank for rank in range(len(schedules))]
        self.heard_before = list(self.heard)

    def _initial(self, rank: int) -> dict[Buffer, list[int | None]]:
        chunks, scratch = self.schedules[rank].chunks, self.schedules[rank].scratch
        return {
            Buffer.DATA: [self.expressions.leaf(rank, chunk) for chunk in range(chunks)],
            Buffer.SCRATCH: [None] * (chunks * scratch),
        }

    def to_the_end(self) -> None:
        """Execute all ranks to the end. Raise if some rank is blocked."""
        able = deque(range(len(self.schedules)))
        while able:
            able.extend(self._enter_next_round(able.popleft()))
        for rank, unfinished in enumerate(self.unfinished):
            if unfinished:
                self._raise_deadlock(rank)

    def _enter_next_round(self, rank: int) -> list[int]:
        """Execute the possible steps of this rank's next round.

        Return the ranks that completed their round in this way.
        """
        self.round[rank] += 1
        self.heard_before[rank] = self.heard[rank]
        if self.round[rank] == len(self.schedules[rank].rounds):
            return []
        steps = self.schedules[rank].rounds[self.round[rank]]
        self.unfinished[rank] = {i for i, step in enumerate(steps) if not isinstance(step, Copy | Accumulate)}
        for i, step in enumerate(steps):
            if isinstance(step, Copy | Accumulate):
                self._do_local(Position(rank, self.round[rank], i), step)
        met = [self._try_to_meet(Position(rank, self.round[rank], i)) for i in sorted(self.unfinished[rank])]
        ended = {peer for peer in met if peer is not None and not self.unfinished[peer]}
        return sorted(ended) if self.unfinished[rank] else [*sorted(ended), rank]

    def _try_to_meet(self, place: Position) -> int | None:
        """Transfer the message of this step if the other rank has reached it, too.

        Return the other rank; None if it has not reached the message.
        """
        other = self.other_end[place]
        if self.round[other.rank] != other.round:
            return None
        is_send = isinstance(_step(self.schedules, place), Send)
        self._pass(place, other) if is_send else self._pass(other, place)
        self.unfinished[place.rank].discard(place.step)
        self.unfinished[other.rank].discard(other.step)
        return other.rank

    def _pass(self, sender: Position, receiver: Position) -> None:
        send, take = _step(self.schedules, sender), _step(self.schedules, receiver)
        assert isinstance(send, Send)
        assert isinstance(take, Recv | Reduce)
        values = self._read(sender, send.chunks)
        self._write(receiver, take.chunks, values, combine=isinstance(take, Reduce))
        self.heard[receiver.rank] |= self.heard_before[sender.rank]

    def _do_local(self, place: Position, step: Copy | Accumulate) -> None:
        values = self._read(place, step.source)
        self._write(place, step.target, values, combine=isinstance(step, Accumulate))

    def _read(self, place: Position, chunks: Chunks) -> list[int]:
        values = self.values[place.rank][chunks.buffer][chunks.start : chunks.stop]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            problem = f"reads {chunks}, and a part was never written"
            raise ScheduleError(place, _step(self.schedules, place), problem, "unwritten")
        return known

    def _write(self, place: Position, chunks: Chunks, values: list[int], *, combine: bool) -> None:
        memory = self.values[place.rank][chunks.buffer]
        if combine:
            own = self._read(place, chunks)
            values = [self._add(place, a, b) for a, b in zip(own, values, strict=True)]
        memory[chunks.start : chunks.stop] = values

    def _add(self, place: Position, own: int, other: int) -> int:
        known, step = self.expressions, _step(self.schedules, place)
        if known.chunk[own] != known.chunk[other]:
            problem = f"adds {known.describe(other)} to {known.describe(own)}"
            raise ScheduleError(place, step, problem, "sum")
        if known.contributors[own] & known.contributors[other]:
            problem = f"adds {known.describe(other)} to {known.describe(own)}: a contribution counts twice"
            raise ScheduleError(place, step, problem, "sum")
        return known.add(own, other)

    def _raise_deadlock(self, rank: int) -> None:
        """Return the cycle of waiting ranks: follow the waits from rank to rank until a rank repeats."""
        waits: dict[int, Position] = {}
        while rank not in waits:
            waits[rank] = Position(rank, self.round[rank], min(self.unfinished[rank]))
            rank = self.other_end[waits[rank]].rank
        cycle = list(waits.values())[list(waits).index(rank) :]
        steps = [f"rank {p.rank} in round {p.round} ({_step(self.schedules, p)})" for p in cycle]
        problem = f"deadlock: {' waits for '.join(steps)} waits for rank {rank}"
        raise ScheduleError(cycle[0], _step(self.schedules, cycle[0]), problem, "deadlock")

    def check_data(self, goal: str, root: int) -> None:
        """Compare the result with the goal. All ranks with the same sum must have added it in the same order."""
        known = self.expressions
        first: dict[tuple[int, int], tuple[int, int]] = {}
        for demand in GOALS[goal](len(self.schedules), self.schedules[0].chunks, root):
            rank, wanted = demand.rank, (demand.contributors, demand.chunk)
            value = self.values[rank][Buffer.DATA][demand.place]
            assert value is not None  # only scratch can be undefined
            if (known.contributors[value], known.chunk[value]) != wanted:
                wish = f"chunk {demand.chunk} of ranks {ranks_of(demand.contributors)}"
                problem = (
                    f"ends with {known.describe(value)} in chunk {demand.place}, but {goal} demands {wish}"
                )
                raise ScheduleError(self._end(rank), None, problem, "goal")
            expression, other = first.setdefault(wanted, (value, rank))
            if expression != value:
                problem = f"sums chunk {demand.chunk} in another order than rank {other}: the bits may differ"
                raise ScheduleError(self._end(rank), None, problem, "order")

    def check_heard(self) -> None:
        everyone = (1 << len(self.schedules)) - 1
        for rank, heard in enumerate(self.heard):
            if heard != everyone:
                problem = f"leaves the barrier before ranks {ranks_of(everyone & ~heard)} have entered"
                raise ScheduleError(self._end(rank), None, problem, "goal")

    def _end(self, rank: int) -> Position:
        return Position(rank, max(0, len(self.schedules[rank].rounds) - 1), 0)
