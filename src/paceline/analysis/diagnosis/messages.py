"""The messages of a trace, and their travel times on an unobstructed link."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.analysis.diagnosis.activities import Activities, Floats, Indices, What

_BLOCKED = 3.0
"""Ratio to the fastest send of the same size on the same host. A send with a larger ratio has waited for its
receiver."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Columns of facts, with one row for each message that was sent and received."""

    send: Indices
    """Rows in the activities."""
    receipt: Indices
    travel_s: Floats
    """Shortest time from the start of the send to the end of the receipt, among messages of its kind."""
    carry_s: Floats
    """Part of that time in which the receiver is busy."""
    late_s: Floats
    """Delay beyond its travel time and earlier messages; 0 if the receiver was not waiting for it."""
    sending_s: Floats
    """Duration of the send alone, if it had to wait for its receiver to start; else NaN."""


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Other links than those of a run."""

    byte_factor: float = 1.0
    """Factor on the seconds of a byte."""
    latency_s: float = 0.0
    """Difference of the latencies."""

    def applied(self, found: Messages) -> Messages:
        """Return the messages as these links would carry them."""
        carry_s = self.byte_factor * found.carry_s
        travel_s = np.maximum(found.travel_s + self.latency_s + carry_s - found.carry_s, carry_s)
        return replace(
            found, travel_s=travel_s, carry_s=carry_s, sending_s=self.byte_factor * found.sending_s
        )


def match_messages(activities: Activities) -> Messages:
    """Return the messages with both ends in the trace. The two ends have the same id."""
    sends, receipts = activities.where(What.SEND), activities.where(What.RECEIPT)
    _, first, second = np.intersect1d(
        activities.message[sends], activities.message[receipts], return_indices=True
    )
    send, receipt = sends[first], receipts[second]
    sizes, sending_s = activities.nbytes[send], activities.work_s[send]
    ends = np.column_stack([activities.rank[send], activities.rank[receipt], sizes])
    _, kind = np.unique(ends, axis=0, return_inverse=True)
    waited = activities.waited[receipt]
    # The clocks of two hosts may differ slightly.
    travelled_s = np.maximum(activities.end_s[receipt] - activities.start_s[send], 0.0)
    # If the receiver was not waiting for a message, its travel time is unknown.
    extra_s = (travelled_s - sending_s)[waited]
    otherwise_s = sending_s + (max(0.0, float(extra_s.min())) if len(extra_s) else 0.0)
    travel_s = _least(travelled_s, kind, waited, _least(travelled_s, sizes, waited, otherwise_s))
    receiving_s = activities.work_s[receipt]
    carry_s = _least(receiving_s, kind, waited, _least(receiving_s, sizes, waited, sending_s))
    carry_s = np.minimum(carry_s, travel_s)
    late_s = _late(activities, send, receipt, travel_s, carry_s)
    return Messages(send, receipt, travel_s, carry_s, late_s, _unblocked(activities, send, receipt, sizes))


def _least(values: Floats, group: Indices, counted: NDArray[np.bool_], otherwise: Floats) -> Floats:
    """Return the least counted value in each element's group; `otherwise` if no element of the group counts."""
    _, number = np.unique(group.reshape(-1), return_inverse=True)
    least = np.full(number.max(initial=-1) + 1, np.inf)
    np.minimum.at(least, number[counted], values[counted])
    return np.where(np.isfinite(least[number]), least[number], otherwise)


def _late(
    activities: Activities, send: Indices, receipt: Indices, travel_s: Floats, carry_s: Floats
) -> Floats:
    """Return the delay of each message. A receiver handles one message at a time, in the order of arrival."""
    end_s, rank, waited = activities.end_s[receipt], activities.rank[receipt], activities.waited[receipt]
    order = np.lexsort((end_s, rank))
    before_s = np.full(len(receipt), -np.inf)
    same = rank[order][1:] == rank[order][:-1]
    before_s[order[1:][same]] = end_s[order[:-1][same]]
    explained_s = np.maximum(activities.start_s[send] + travel_s, before_s + carry_s)
    return np.where(waited, np.maximum(end_s - explained_s, 0.0), 0.0)


def _unblocked(activities: Activities, send: Indices, receipt: Indices, sizes: Indices) -> Floats:
    """Return the duration of blocked sends without the wait, else NaN. Only shared memory can be full."""
    host = np.full(max(activities.hosts, default=0) + 1, -1)
    host[list(activities.hosts)] = list(activities.hosts.values())
    near = host[activities.rank[send]] == host[activities.rank[receipt]]
    taken_s = activities.work_s[send]
    least_s = _least(taken_s, sizes, near, taken_s)
    begun_s = activities.start_s[receipt]
    blocked = (activities.start_s[send] < begun_s) & (begun_s <= activities.end_s[send])
    blocked &= near & (taken_s > _BLOCKED * least_s)
    return np.where(blocked, least_s, np.nan)
