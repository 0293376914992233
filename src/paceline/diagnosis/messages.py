"""Which send became which receipt, and how long messages travel when nothing is in their way.

Spans carry no tags. Messages of one size from one rank to another are taken to be received in the order in which they
were sent, which holds for every strategy whose tags differ in size or follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.diagnosis.activities import Activities, Floats, Indices, What

__all__ = ["Messages", "match_messages"]

_BLOCKED = 3.0
"""A send that takes so many times as long as the quickest of its size on its host has waited for its receiver."""


@dataclass(frozen=True, slots=True)
class Messages:
    """A column for each fact, a row for each message that was sent and received."""

    send: Indices
    """Rows of the activities."""
    receipt: Indices
    travel_s: Floats
    """From the start of the send to the end of the receipt, as quick as any message of its kind was."""
    carry_s: Floats
    """How much of that it keeps the receiver busy."""
    late_s: Floats
    """How much later it was than its travel and the messages before it explain. 0 where nobody was waiting for it."""
    sending_s: Floats
    """What the send took by itself, where it had to wait until its receiver began to take it. Else NaN."""


def match_messages(activities: Activities) -> Messages:
    """All messages of a trace."""
    sends, receipts = activities.where(What.SEND), activities.where(What.RECEIPT)
    # Of each message: from whom, to whom, of how many bytes.
    sent = np.column_stack([activities.rank[sends], activities.peer[sends], activities.nbytes[sends]])
    got = np.column_stack([activities.peer[receipts], activities.rank[receipts], activities.nbytes[receipts]])
    kinds, places = np.unique(np.concatenate([sent, got]), axis=0, return_inverse=True)
    places = places.reshape(-1)
    first, second = _pair(
        _by_kind(places[: len(sends)], activities.start_s[sends]),
        _by_kind(places[len(sends) :], activities.end_s[receipts]),
        len(kinds),
    )
    return _timed(activities, sends[first], receipts[second], kinds, places[first])


def _by_kind(kind: Indices, seconds: Floats) -> tuple[Indices, Indices]:
    """The order by kind and time, and where each one's kind begins in it."""
    order = np.lexsort((seconds, kind))
    return order, kind[order]


def _pair(sent: tuple[Indices, Indices], got: tuple[Indices, Indices], kinds: int) -> tuple[Indices, Indices]:
    """The n-th of a kind that was sent with the n-th that was received."""
    (sent_order, sent_kind), (got_order, got_kind) = sent, got
    bounds = np.arange(kinds + 1)
    sent_from, got_from = np.searchsorted(sent_kind, bounds), np.searchsorted(got_kind, bounds)
    both = np.minimum(np.diff(sent_from), np.diff(got_from))
    nth = np.arange(both.sum()) - np.repeat(np.cumsum(both) - both, both)
    return sent_order[np.repeat(sent_from[:-1], both) + nth], got_order[np.repeat(got_from[:-1], both) + nth]


def _timed(
    activities: Activities, send: Indices, receipt: Indices, kinds: Indices, kind: Indices
) -> Messages:
    travelled_s = activities.end_s[receipt] - activities.start_s[send]
    possible = travelled_s >= 0  # else one of its kind was lost, and the count is wrong from there on
    send, receipt, kind, travelled_s = (
        send[possible],
        receipt[possible],
        kind[possible],
        travelled_s[possible],
    )
    waited = activities.waited[receipt]
    sizes = kinds[:, 2][kind]
    sending_s = activities.work_s[send]
    # Who was not waiting for a message cannot tell how long it travelled.
    extra_s = (travelled_s - sending_s)[waited]
    otherwise_s = sending_s + (max(0.0, float(extra_s.min())) if len(extra_s) else 0.0)
    travel_s = _least(travelled_s, kind, waited, _least(travelled_s, sizes, waited, otherwise_s))
    receiving_s = activities.work_s[receipt]
    carry_s = _least(receiving_s, kind, waited, _least(receiving_s, sizes, waited, sending_s))
    carry_s = np.minimum(carry_s, travel_s)
    late_s = _late(activities, send, receipt, travel_s, carry_s)
    return Messages(send, receipt, travel_s, carry_s, late_s, _unblocked(activities, send, receipt, sizes))


def _least(values: Floats, group: Indices, counted: NDArray[np.bool_], otherwise: Floats) -> Floats:
    """The least counted value of each one's group; `otherwise` where none of the group counts."""
    _, number = np.unique(group, return_inverse=True)
    least = np.full(number.max(initial=-1) + 1, np.inf)
    np.minimum.at(least, number[counted], values[counted])
    return np.where(np.isfinite(least[number]), least[number], otherwise)


def _late(
    activities: Activities, send: Indices, receipt: Indices, travel_s: Floats, carry_s: Floats
) -> Floats:
    """A receiver takes one message at a time, in the order in which they came."""
    end_s, rank, waited = activities.end_s[receipt], activities.rank[receipt], activities.waited[receipt]
    order = np.lexsort((end_s, rank))
    before_s = np.full(len(receipt), -np.inf)
    same = rank[order][1:] == rank[order][:-1]
    before_s[order[1:][same]] = end_s[order[:-1][same]]
    explained_s = np.maximum(activities.start_s[send] + travel_s, before_s + carry_s)
    return np.where(waited, np.maximum(end_s - explained_s, 0.0), 0.0)


def _unblocked(activities: Activities, send: Indices, receipt: Indices, sizes: Indices) -> Floats:
    """Only memory that two ranks share can be full."""
    host = np.full(max(activities.hosts, default=0) + 1, -1)  # a rank that died has left no trace
    host[list(activities.hosts)] = list(activities.hosts.values())
    near = host[activities.rank[send]] == host[activities.rank[receipt]]
    taken_s = activities.work_s[send]
    least_s = _least(taken_s, sizes, near, taken_s)
    begun_s = activities.start_s[receipt]
    blocked = (activities.start_s[send] < begun_s) & (begun_s <= activities.end_s[send])
    blocked &= near & (taken_s > _BLOCKED * least_s)
    return np.where(blocked, least_s, np.nan)
