"""Times a schedule message by message, in order of virtual time: exact whatever overtakes whatever.

The model of the network is in `timing`. Messages that reach an in port at the same instant are served in
order of their start, then of their send call, then of their sender's rank.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.schedules.matching import Match, Position, ScheduleError
from paceline.schedules.network import Floats, NetworkCosts
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


@dataclass(frozen=True, eq=False, slots=True)
class _Rounds:
    """The parts of all ranks in all rounds that have messages, numbered by rank and then by round."""

    first: list[int]
    """The number of each rank's first part, and after the last rank the number of all."""
    sends: list[list[int]]
    """The messages that each part sends."""
    receiving: list[int]
    """The part that each message is received in."""
    awaited: list[int]
    """How many messages each part has still to receive."""


def _rounds(messages: Messages, size: int) -> _Rounds:
    ranks = np.concatenate([messages.sources, messages.targets])
    numbers = np.concatenate([messages.source_rounds, messages.target_rounds])
    depth = int(numbers.max(initial=0)) + 1
    codes, parts = np.unique(ranks * depth + numbers, return_inverse=True)
    first = np.searchsorted(codes, np.arange(size + 1) * depth)
    sending, receiving = np.split(parts, 2)
    sends: list[list[int]] = [[] for _ in codes]
    for message, part in enumerate(sending.tolist()):
        sends[part].append(message)
    awaited = np.bincount(receiving, minlength=len(codes))
    return _Rounds(first.tolist(), sends, receiving.tolist(), awaited.tolist())


def run_exact(
    messages: Messages, network: NetworkCosts, now: Floats, out_free: Floats, in_free: Floats
) -> tuple[Floats, Floats, Floats]:
    """When each rank ends, and when its ports are free."""
    pairs = messages.sources, messages.targets
    transfer_s = network.size_bytes(messages.starts, messages.stops) * network.seconds_per_byte(*pairs)
    state = now.tolist(), out_free.tolist(), in_free.tolist()
    rounds = _rounds(messages, len(now))
    reached = _simulate(messages, rounds, network.latency_s(*pairs).tolist(), transfer_s.tolist(), *state)
    for rank, part in enumerate(reached):
        if part < rounds.first[rank + 1]:
            place = Position(rank, part - rounds.first[rank], 0)
            raise ScheduleError(place, None, "waits for ever: the schedules deadlock; validate() says where")
    finish, out, into = (np.array(times, np.float64) for times in state)
    return finish, out, into


def _simulate(
    messages: Messages,
    rounds: _Rounds,
    latency_s: list[float],
    transfer_s: list[float],
    finish: list[float],
    out_free: list[float],
    in_free: list[float],
) -> list[int]:
    """Let time pass. Updates the last three; returns the part that each rank has reached."""
    first, sends, receiving, awaited = rounds.first, rounds.sends, rounds.receiving, rounds.awaited
    targets = messages.targets.tolist()
    end = [-math.inf] * len(sends)
    reached = [part - 1 for part in first[:-1]]
    # Wakes (0) come before arrivals (1) of one instant: first, all who can send at that instant have sent.
    heap = [(time, 0, 0.0, 0.0, rank, -1) for rank, time in enumerate(finish)]
    heapq.heapify(heap)
    while heap:
        now, is_arrival, _, _, rank, message = heapq.heappop(heap)
        if is_arrival:  # its delivery lies ahead, but nothing can change it any more
            rank, part = targets[message], receiving[message]
            in_free[rank] = max(now, in_free[rank]) + transfer_s[message]
            end[part] = max(end[part], in_free[rank])
            awaited[part] -= 1
            ended = part == reached[rank] and not awaited[part]
        else:  # the rank begins its next part
            finish[rank] = now
            part = reached[rank] = reached[rank] + 1
            if part == first[rank + 1]:
                continue
            end[part] = max(end[part], now)
            for message in sends[part]:
                start = max(now, out_free[rank])
                end[part] = max(end[part], start + transfer_s[message])
                out_free[rank] = start + transfer_s[message]
                heapq.heappush(heap, (start + latency_s[message], 1, start, now, rank, message))
            ended = not awaited[part]
        if ended:
            heapq.heappush(heap, (end[part], 0, 0.0, 0.0, rank, -1))
    return reached
