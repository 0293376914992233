"""Exact timing of a schedule, message by message in order of virtual time. Messages may overtake each other.

The link model is in `costs.transfers`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.costs.transfers import Resource, arrival_order
from paceline.schedules.collectives.matching import Match, Position, ScheduleError
from paceline.schedules.collectives.network import Floats, NetworkCosts
from paceline.schedules.collectives.plan import GroupPlan, Ints


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
    """Return the messages of per-rank schedules."""
    rows = [
        (m.sender.rank, m.receiver.rank, m.sender.round, m.receiver.round, m.sent.start, m.sent.stop)
        for m in matches
    ]
    return Messages(*np.array(rows, np.int64).reshape(-1, 6).T)


def messages_of_plan(plan: GroupPlan) -> Messages:
    """Return all messages of a plan."""
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
    """The parts of all ranks in all rounds with messages, numbered by rank and then by round."""

    first: list[int]
    """Number of each rank's first part, then the total number of parts."""
    sends: list[list[int]]
    """Messages sent in each part."""
    receiving: list[int]
    """Part in which each message is received."""
    awaited: list[int]
    """Number of messages that each part still has to receive."""


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
    """Return the time at which each rank ends, and the times at which its ports are free."""
    pairs = messages.sources, messages.targets
    transfer_s = network.size_bytes(messages.starts, messages.stops) * network.seconds_per_byte(*pairs)
    finish = now.tolist()
    senders, receivers = ([Resource(free_s) for free_s in each.tolist()] for each in (out_free, in_free))
    rounds = _rounds(messages, len(now))
    latency_s = network.latency_s(*pairs).tolist()
    reached = _simulate(messages, rounds, latency_s, transfer_s.tolist(), finish, senders, receivers)
    for rank, part in enumerate(reached):
        if part < rounds.first[rank + 1]:
            place = Position(rank, part - rounds.first[rank], 0)
            problem = "never ends: the schedules deadlock; validate() shows where"
            raise ScheduleError(place, None, problem, "deadlock")
    out, into = ([each.free_s for each in resources] for resources in (senders, receivers))
    return np.array(finish, np.float64), np.array(out, np.float64), np.array(into, np.float64)


def _simulate(
    messages: Messages,
    rounds: _Rounds,
    latency_s: list[float],
    transfer_s: list[float],
    finish: list[float],
    senders: Sequence[Resource],
    receivers: Sequence[Resource],
) -> list[int]:
    """Run the simulation. Update the last three arguments in place. Return the part that each rank has reached."""
    first, sends, receiving, awaited = rounds.first, rounds.sends, rounds.receiving, rounds.awaited
    targets = messages.targets.tolist()
    end = [-math.inf] * len(sends)
    reached = [part - 1 for part in first[:-1]]
    # Among events at the same time, wakes (0) come before arrivals (1), so that all sends at that time have been
    # issued.
    heap = [(time, 0, 0.0, rank, -1) for rank, time in enumerate(finish)]
    heapq.heapify(heap)
    while heap:
        now, is_arrival, _, rank, message = heapq.heappop(heap)
        if is_arrival:  # the message is delivered later, but the time is already final
            rank, part = targets[message], receiving[message]
            delivered_s = receivers[rank].occupy(now, transfer_s[message]) + transfer_s[message]
            end[part] = max(end[part], delivered_s)
            awaited[part] -= 1
            ended = part == reached[rank] and not awaited[part]
        else:  # the rank starts its next part
            finish[rank] = now
            part = reached[rank] = reached[rank] + 1
            if part == first[rank + 1]:
                continue
            end[part] = max(end[part], now)
            for message in sends[part]:
                start = senders[rank].occupy(now, transfer_s[message])
                end[part] = max(end[part], start + transfer_s[message])
                arrival, start, source = arrival_order(start + latency_s[message], start, rank)
                heapq.heappush(heap, (arrival, 1, start, source, message))
            ended = not awaited[part]
        if ended:
            heapq.heappush(heap, (end[part], 0, 0.0, rank, -1))
    return reached
