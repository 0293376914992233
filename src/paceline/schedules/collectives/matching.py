"""Matching of Sends with Recvs and Reduces: between two ranks, messages are received in the order sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from paceline.errors import PacelineError
from paceline.schedules.collectives.steps import Chunks, Recv, Reduce, Schedule, Send, Step


class Position(NamedTuple):
    """Position of a step: rank, number of its round, number of the step in the round."""

    rank: int
    round: int
    step: int


class Match(NamedTuple):
    """A Send, and the Recv or Reduce that receives its message."""

    sender: Position
    receiver: Position
    sent: Chunks
    received: Chunks


Fault = Literal["unmatched", "peer", "deadlock", "chunks", "hazard", "unwritten", "sum", "order", "goal"]
"""Kinds of faults: a message without its other end, an invalid peer, ranks that wait for each other, chunks that do
not exist or do not fit, two steps of a round that access the same chunk, a read of data that was never written,
a sum of data that must not be added, ranks that add in different orders, and a result that differs from the
goal."""


class ScheduleError(PacelineError):
    """An invalid schedule. Reports the rank, the round, the step, the problem and its kind."""

    code = "PL-040"

    def __init__(self, place: Position, step: Step | None, problem: str, fault: Fault) -> None:
        super().__init__(place, step, problem, fault)
        self.rank, self.round, self.step_index = place
        self.step = step
        self.problem = problem
        self.fault = fault

    def __str__(self) -> str:
        where = f"rank {self.rank}, round {self.round}"
        if self.step is not None:
            where += f", step {self.step_index} ({self.step})"
        return f"{where}: {self.problem}"


def match(schedules: Sequence[Schedule]) -> list[Match]:
    """Return all messages, in order of sender, round and step. Raise `ScheduleError` for an unmatched step."""
    size = len(schedules)
    waiting: dict[tuple[int, int], list[tuple[Position, Recv | Reduce]]] = defaultdict(list)
    for place, step in steps_of(schedules):
        if isinstance(step, Recv | Reduce):
            _check_peer(place, step, step.source, size)
            waiting[step.source, place.rank].append((place, step))
    queues = {pair: iter(steps) for pair, steps in waiting.items()}
    matches = []
    for place, step in steps_of(schedules):
        if isinstance(step, Send):
            _check_peer(place, step, step.to, size)
            taker = next(queues.get((place.rank, step.to), iter(())), None)
            if taker is None:
                raise ScheduleError(
                    place, step, f"rank {step.to} has no step that receives this message", "unmatched"
                )
            matches.append(Match(place, taker[0], step.chunks, taker[1].chunks))
    for queue in queues.values():
        for place, step in queue:
            raise ScheduleError(
                place, step, f"rank {step.source} has no step that sends this message", "unmatched"
            )
    return matches


def steps_of(schedules: Sequence[Schedule]) -> Iterator[tuple[Position, Step]]:
    """Yield every step of a group, rank by rank."""
    for rank, schedule in enumerate(schedules):
        for number, steps in enumerate(schedule.rounds):
            for index, step in enumerate(steps):
                yield Position(rank, number, index), step


def _check_peer(place: Position, step: Step, peer: int, size: int) -> None:
    if not 0 <= peer < size:
        raise ScheduleError(place, step, f"there is no rank {peer} in a group of {size}", "peer")
    if peer == place.rank:
        raise ScheduleError(place, step, "a rank may not send to itself; use Copy or Accumulate", "peer")
