"""Times a group plan round by round, all ranks at once: a few array operations a round.

This is exact as long as every in port takes its messages in the order of the rounds. Where a message of a
later round could overtake one of an earlier round, `OutOfOrder` is raised, and the caller must go message by
message. Around a ring that cannot happen: each in port has one sender.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.schedules.network import Floats, NetworkCosts
from paceline.schedules.plan import GroupPlan, Ints, Pairing

__all__ = ["OutOfOrder", "run_wavefront"]


class OutOfOrder(Exception):  # noqa: N818  (not an error: a question for the caller)
    """A message may reach an in port before one of an earlier round."""


@dataclass(frozen=True, eq=False, slots=True)
class _Links:
    """What is known of a pairing before any time passes."""

    pairing: Pairing
    latency_s: Floats
    seconds_per_byte: Floats
    turns_out: list[Ints]
    """Messages, by index, that are first, second, … at the out ports of their senders."""
    turns_in: list[Ints]
    """The same at in ports, as indices into the messages sorted by target."""
    instant: bool
    """Whether some message may take no time at all, if it is empty."""


class _Wavefront:
    def __init__(self, now: Floats, out_free: Floats, in_free: Floats, *, overtaking: bool) -> None:
        self.overtaking = overtaking
        self.now, self.out_free, self.in_free = now.copy(), out_free.copy(), in_free.copy()
        self.last_arrival = np.full(len(now), -np.inf)
        self.start, self.arrival = np.empty(len(now)), np.empty(len(now))
        self.previous: Pairing | None = None
        self.instant_seen = False

    def advance(self, links: _Links, size_bytes: Floats) -> None:
        transfer_s = size_bytes * links.seconds_per_byte
        if links.instant:
            self.instant_seen |= bool((links.latency_s + transfer_s == 0).any())
        if links.pairing.shift is None:
            self._advance_any(links, transfer_s)
        else:
            self._advance_shift(links, transfer_s, links.pairing.shift % len(self.now))
        self.previous = links.pairing

    def _advance_shift(self, links: _Links, transfer_s: Floats, shift: int) -> None:
        """Every rank sends one message and gets one: slices, in place, and no index arrays."""
        start, arrival = self.start, self.arrival
        np.maximum(self.now, self.out_free, out=start)
        np.add(start, transfer_s, out=self.out_free)
        np.add(start[:-shift], links.latency_s[:-shift], out=arrival[shift:])
        np.add(start[-shift:], links.latency_s[-shift:], out=arrival[:shift])
        # With the same sender as before, a port takes messages in the order in which they were sent.
        if links.pairing is not self.previous:
            self._check_order(arrival, self.last_arrival)
        np.maximum(arrival, self.in_free, out=self.in_free)
        self.in_free[shift:] += transfer_s[:-shift]
        self.in_free[:shift] += transfer_s[-shift:]
        np.maximum(self.out_free, self.in_free, out=self.now)
        self.last_arrival, self.arrival = arrival, self.last_arrival

    def _advance_any(self, links: _Links, transfer_s: Floats) -> None:
        sources, targets = links.pairing.sources, links.pairing.targets
        call = self.now[sources]
        start = self._leave(links, call, transfer_s)
        arrival = start + links.latency_s
        order = self._queue(links, arrival, start, call)
        first = order[links.turns_in[0]]
        if links.pairing is not self.previous or len(links.turns_in) > 1:
            self._check_order(arrival[first], self.last_arrival[targets[first]])
        self._enter(links, order, arrival, transfer_s)
        # A port is free when its last message of the round is through: that is when the rank's part is done.
        self.now[sources] = np.maximum(call, self.out_free[sources])
        self.now[targets] = np.maximum(self.now[targets], self.in_free[targets])

    def _check_order(self, arrival: Floats, last_arrival: Floats) -> None:
        if self.overtaking and (arrival <= last_arrival).any():
            raise OutOfOrder

    def _leave(self, links: _Links, call: Floats, transfer_s: Floats) -> Floats:
        start = np.empty_like(call)
        for turn in links.turns_out:
            ranks = links.pairing.sources[turn]
            start[turn] = np.maximum(call[turn], self.out_free[ranks])
            self.out_free[ranks] = start[turn] + transfer_s[turn]
        return start

    def _queue(self, links: _Links, arrival: Floats, start: Floats, call: Floats) -> Ints:
        """The messages by target, and at each target in the order in which its in port takes them."""
        if len(links.turns_in) == 1:
            return links.turns_in[0]
        # An exchange that takes no time at all may have happened between two messages of one instant.
        if self.instant_seen:
            raise OutOfOrder
        return np.lexsort((links.pairing.sources, call, start, arrival, links.pairing.targets))

    def _enter(self, links: _Links, order: Ints, arrival: Floats, transfer_s: Floats) -> None:
        for turn in links.turns_in:
            messages = order[turn]
            ranks = links.pairing.targets[messages]
            self.in_free[ranks] = np.maximum(arrival[messages], self.in_free[ranks]) + transfer_s[messages]
            self.last_arrival[ranks] = arrival[messages]


def run_wavefront(
    plan: GroupPlan,
    network: NetworkCosts,
    now: Floats,
    out_free: Floats,
    in_free: Floats,
    *,
    overtaking: bool = True,
) -> tuple[Floats, Floats, Floats]:
    """When each rank ends, and when its ports are free.

    Raises `OutOfOrder` where a message might overtake one of an earlier round. Without `overtaking`, in ports
    keep the order of the rounds instead, whatever reaches them first.
    """
    front = _Wavefront(now, out_free, in_free, overtaking=overtaking)
    links: _Links | None = None
    for part in plan.rounds():
        if links is None or links.pairing is not part.pairing:
            links = _links(part.pairing, network)
        front.advance(links, network.size_bytes(part.starts, part.stops))
    return front.now, front.out_free, front.in_free


def _links(pairing: Pairing, network: NetworkCosts) -> _Links:
    sources, targets = pairing.sources, pairing.targets
    latency_s = network.latency_s(sources, targets)
    shared = pairing.shift is None
    return _Links(
        pairing,
        latency_s,
        network.seconds_per_byte(sources, targets),
        [np.argsort(sources, kind="stable")[turn] for turn in _turns(sources)] if shared else [],
        _turns(targets) if shared else [],
        bool((latency_s == 0).any()),
    )


def _turns(ranks: Ints) -> list[Ints]:
    """With the ranks sorted: the indices of the first occurrence of each, of the second, …"""
    ordered = np.sort(ranks)
    position = np.arange(len(ranks)) - np.searchsorted(ordered, ordered)
    return [np.flatnonzero(position == turn) for turn in range(int(position.max(initial=-1)) + 1)]
