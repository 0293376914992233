"""Times a schedule message by message, in order of virtual time: exact whatever overtakes whatever.

The model of the network is in `timing`. Messages that reach an in port at the same instant are served in
order of their start, then of their send call, then of their sender's rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.schedules.matching import Match, Place, ScheduleError
from paceline.schedules.network import Floats, Network
from paceline.schedules.plan import GroupPlan, Ints

__all__ = ["Messages", "messages_of_matches", "messages_of_plan", "run_exact"]


@dataclass(frozen=True, eq=False, slots=True)
class Messages:
    """All messages of a group. A sender's messages of one round are in the order in which it issues them."""

    sources: Ints
    targets: Ints
    source_rounds: Ints
    target_rounds: Ints
    starts: Ints
    stops: Ints


def messages_of_matches(matches: Sequence[Match]) -> Messages:
    """The messages of per-rank schedules."""
    rows = [
        (m.sender.rank, m.receiver.rank, m.sender.round, m.receiver.round, m.sent.start, m.sent.stop)
        for m in matches
    ]
    return Messages(*np.array(rows, np.int64).reshape(-1, 6).T)


def messages_of_plan(plan: GroupPlan) -> Messages:
    """All messages of a plan at once."""
    none: list[Ints] = [np.zeros(0, np.int64)]
    rounds = list(plan.rounds())
    number = np.repeat(np.arange(len(rounds)), [len(part.starts) for part in rounds])
    return Messages(
        np.concatenate(none + [part.pairing.sources for part in rounds]),
        np.concatenate(none + [part.pairing.targets for part in rounds]),
        number,
        number,
        np.concatenate(none + [part.starts for part in rounds]),
        np.concatenate(none + [part.stops for part in rounds]),
    )


@dataclass(slots=True)
class _Round:
    """One rank's part in one round."""

    sends: list[int]
    awaited: int = 0
    """Messages that the round must receive and whose delivery is not known yet."""
    end_s: float = 0.0


class _Simulation:
    def __init__(self, messages: Messages, latency_s: Floats, transfer_s: Floats, now: Floats) -> None:
        self.sources, self.targets = messages.sources.tolist(), messages.targets.tolist()
        self.latency_s, self.transfer_s = latency_s.tolist(), transfer_s.tolist()
        self.finish_s: list[float] = now.tolist()
        self.receiving: list[_Round] = []
        self.lines = self._lines(messages, len(now))
        self.entered = [0] * len(now)
        # Wakes (0) come before arrivals (1) of the same instant, so that all who can send at an instant have
        # sent.
        self.heap: list[tuple[float, int, float, float, int, int]] = []

    def _lines(self, messages: Messages, size: int) -> list[list[_Round]]:
        """The rounds of each rank that have messages, in order."""
        rounds: dict[tuple[int, int], _Round] = {}
        for i, key in enumerate(zip(self.sources, messages.source_rounds.tolist(), strict=True)):
            rounds.setdefault(key, _Round([])).sends.append(i)
        for key in zip(self.targets, messages.target_rounds.tolist(), strict=True):
            part = rounds.setdefault(key, _Round([]))
            part.awaited += 1
            self.receiving.append(part)
        lines: list[list[_Round]] = [[] for _ in range(size)]
        for rank, number in sorted(rounds):
            lines[rank].append(rounds[rank, number])
        return lines

    def run(self, out_free: list[float], in_free: list[float]) -> None:
        for rank, now in enumerate(self.finish_s):
            heapq.heappush(self.heap, (now, 0, 0.0, 0.0, rank, 0))
        while self.heap:
            now, kind, _, _, rank, message = heapq.heappop(self.heap)
            if kind == 0:
                self._enter(rank, now, out_free)
            else:
                self._arrive(message, now, in_free)

    def _enter(self, rank: int, now: float, out_free: list[float]) -> None:
        """Begin the rank's next round: issue its sends."""
        self.finish_s[rank] = now
        if self.entered[rank] == len(self.lines[rank]):
            return
        part = self.lines[rank][self.entered[rank]]
        self.entered[rank] += 1
        part.end_s = max(part.end_s, now)
        for message in part.sends:
            start = max(now, out_free[rank])
            out_free[rank] = start + self.transfer_s[message]
            arrival = start + self.latency_s[message]
            heapq.heappush(self.heap, (arrival, 1, start, now, rank, message))
        if part.sends:
            part.end_s = max(part.end_s, out_free[rank])
        self._wake_if_done(rank, part)

    def _arrive(self, message: int, now: float, in_free: list[float]) -> None:
        """The in port takes the message. Its delivery lies ahead, but nothing can change it any more."""
        rank = self.targets[message]
        in_free[rank] = max(now, in_free[rank]) + self.transfer_s[message]
        part = self.receiving[message]
        part.awaited -= 1
        part.end_s = max(part.end_s, in_free[rank])
        current = self.entered[rank] - 1
        if current >= 0 and self.lines[rank][current] is part:
            self._wake_if_done(rank, part)

    def _wake_if_done(self, rank: int, part: _Round) -> None:
        if part.awaited == 0:
            heapq.heappush(self.heap, (part.end_s, 0, 0.0, 0.0, rank, 0))

    def check_ended(self) -> None:
        for rank, line in enumerate(self.lines):
            if self.entered[rank] < len(line) or any(part.awaited for part in line[-1:]):
                place = Place(rank, self.entered[rank] - 1, 0)
                raise ScheduleError(
                    place, None, "waits for ever: the schedules deadlock; validate() says where"
                )


def run_exact(
    messages: Messages, network: Network, now: Floats, out_free: Floats, in_free: Floats
) -> tuple[Floats, Floats, Floats]:
    """When each rank ends, and when its ports are free."""
    pairs = messages.sources, messages.targets
    transfer_s = network.size_bytes(messages.starts, messages.stops) * network.seconds_per_byte(*pairs)
    simulation = _Simulation(messages, network.latency_s(*pairs), transfer_s, now)
    out, into = out_free.tolist(), in_free.tolist()
    simulation.run(out, into)
    simulation.check_ended()
    return np.array(simulation.finish_s), np.array(out), np.array(into)
