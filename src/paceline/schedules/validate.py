"""Proves that the schedules of a group are right, by running them with expressions in place of numbers.

A send here waits for its receiver (nothing is buffered), which is the strictest world: what gets through here
gets through anywhere. Four things are refused: a message that nobody sends or takes, or whose two ends differ
in size; a round in which one step writes what another reads or writes; a deadlock; and a result other than
the goal's, or that two ranks add up in different orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from paceline.errors import UnknownNameError
from paceline.schedules.goals import CHUNK_PER_RANK, GOALS
from paceline.schedules.hazards import check_hazards
from paceline.schedules.matching import Match, Position, ScheduleError, match, steps_of
from paceline.schedules.steps import Accumulate, Buffer, Chunks, Copy, Recv, Reduce, Schedule, Send, Step
from paceline.schedules.symbolic import Expressions, ranks_of

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
            problem = f"cuts the data into {schedule.chunks} chunks, but must into {chunks}"
            raise ScheduleError(Position(rank, 0, 0), None, problem)


def _check_sizes(schedules: Sequence[Schedule], matches: Sequence[Match], *, even: bool) -> None:
    """Chunks may differ in length, so none may take the place of one with another number."""
    chunks = schedules[0].chunks
    for place, source, target in _moves(schedules, matches):
        same_count = source.stop - source.start == target.stop - target.start
        if not same_count or (not even and (source.start - target.start) % chunks):
            problem = f"is given {source} for {target}: they may differ in length"
            raise ScheduleError(place, _step(schedules, place), problem)


def _moves(
    schedules: Sequence[Schedule], matches: Sequence[Match]
) -> Iterator[tuple[Position, Chunks, Chunks]]:
    """Every place where chunks go from somewhere to somewhere."""
    for message in matches:
        yield message.receiver, message.sent, message.received
    for place, step in steps_of(schedules):
        if isinstance(step, Copy | Accumulate):
            yield place, step.source, step.target


def _step(schedules: Sequence[Schedule], place: Position) -> Step:
    return schedules[place.rank].rounds[place.round][place.step]


class _Run:
    """All ranks, as far as they have come."""

    def __init__(self, schedules: Sequence[Schedule], matches: Sequence[Match]) -> None:
        self.schedules = schedules
        self.expressions = Expressions()
        self.values = [self._initial(rank) for rank in range(len(schedules))]
        self.round = [-1] * len(schedules)
        self.unfinished: list[set[int]] = [set() for _ in schedules]
        """The steps of each rank's round whose message still waits for the other end."""
        self.other_end = {m.sender: m.receiver for m in matches} | {m.receiver: m.sender for m in matches}
        # What a rank passes on is what it had heard before the round: within a round nothing is ordered.
        self.heard = [1 << rank for rank in range(len(schedules))]
        self.heard_before = list(self.heard)

    def _initial(self, rank: int) -> dict[Buffer, list[int | None]]:
        chunks, scratch = self.schedules[rank].chunks, self.schedules[rank].scratch
        return {
            Buffer.DATA: [self.expressions.leaf(rank, chunk) for chunk in range(chunks)],
            Buffer.SCRATCH: [None] * (chunks * scratch),
        }

    def to_the_end(self) -> None:
        """Let every rank go on until all have ended. Raise where nobody can and somebody should."""
        able = deque(range(len(self.schedules)))
        while able:
            able.extend(self._enter_next_round(able.popleft()))
        for rank, unfinished in enumerate(self.unfinished):
            if unfinished:
                self._raise_deadlock(rank)

    def _enter_next_round(self, rank: int) -> list[int]:
        """Do what can be done in this rank's next round. Returns the ranks whose round this has ended."""
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
        """Pass the message of this step, if the other end has come to it too. Returns the other rank then."""
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
            problem = f"reads {chunks}, some of which was never written"
            raise ScheduleError(place, _step(self.schedules, place), problem)
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
            raise ScheduleError(place, step, problem)
        if known.contributors[own] & known.contributors[other]:
            problem = f"adds {known.describe(other)} to {known.describe(own)}: a contribution counts twice"
            raise ScheduleError(place, step, problem)
        return known.add(own, other)

    def _raise_deadlock(self, rank: int) -> None:
        """Follow who waits for whom until somebody comes up again: that is the cycle."""
        waits: dict[int, Position] = {}
        while rank not in waits:
            waits[rank] = Position(rank, self.round[rank], min(self.unfinished[rank]))
            rank = self.other_end[waits[rank]].rank
        cycle = list(waits.values())[list(waits).index(rank) :]
        steps = [f"rank {p.rank} in round {p.round} ({_step(self.schedules, p)})" for p in cycle]
        problem = f"deadlock: {' waits for '.join(steps)} waits for rank {rank}"
        raise ScheduleError(cycle[0], _step(self.schedules, cycle[0]), problem)

    def check_data(self, goal: str, root: int) -> None:
        """Hold the end against the goal. All who hold the same sum must have added in the same order."""
        known = self.expressions
        first: dict[tuple[int, int], tuple[int, int]] = {}
        for demand in GOALS[goal](len(self.schedules), self.schedules[0].chunks, root):
            rank, wanted = demand.rank, (demand.contributors, demand.chunk)
            value = self.values[rank][Buffer.DATA][demand.place]
            assert value is not None  # data is never undefined, only scratch
            if (known.contributors[value], known.chunk[value]) != wanted:
                wish = f"chunk {demand.chunk} of ranks {ranks_of(demand.contributors)}"
                problem = (
                    f"ends with {known.describe(value)} in chunk {demand.place}, but {goal} demands {wish}"
                )
                raise ScheduleError(self._end(rank), None, problem)
            expression, other = first.setdefault(wanted, (value, rank))
            if expression != value:
                problem = (
                    f"adds up chunk {demand.chunk} in another order than rank {other}: the bits may differ"
                )
                raise ScheduleError(self._end(rank), None, problem)

    def check_heard(self) -> None:
        everyone = (1 << len(self.schedules)) - 1
        for rank, heard in enumerate(self.heard):
            if heard != everyone:
                problem = f"leaves the barrier without having heard of ranks {ranks_of(everyone & ~heard)}"
                raise ScheduleError(self._end(rank), None, problem)

    def _end(self, rank: int) -> Position:
        return Position(rank, max(0, len(self.schedules[rank].rounds) - 1), 0)
