"""Timing of a group plan round by round, all ranks at once, with a few array operations per round.

This is exact if every input port handles its messages in the order of the rounds. If a message of a later round could
overtake one of an earlier round, `OutOfOrder` is raised, and the caller must time message by message. This cannot
happen around a ring, where each input port has one sender.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.costs.transfers import ResourceArray, sort_arrivals
from paceline.schedules.collectives.network import Floats, NetworkCosts
from paceline.schedules.collectives.plan import GroupPlan, Ints, Pairing


class OutOfOrder(Exception):  # noqa: N818  (not an error: the caller uses another method)
    """A message may reach an input port before a message of an earlier round."""


@dataclass(frozen=True, eq=False, slots=True)
class _Links:
    """Static properties of a pairing."""

    pairing: Pairing
    latency_s: Floats
    seconds_per_byte: Floats
    turns_out: list[Ints]
    """Indices of the messages that are first, second, … at the out ports of their senders."""
    turns_in: list[Ints]
    """The same for in ports, as indices into the messages sorted by target."""
    instant: bool
    """Whether some message may be empty and take no time."""


class _Wavefront:
    def __init__(self, now: Floats, out_free: Floats, in_free: Floats, *, overtaking: bool) -> None:
        self.overtaking = overtaking
        self.now = now.copy()
        self.out, self.into = ResourceArray(out_free), ResourceArray(in_free)
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
        """Advance a round in which every rank sends and receives one message, with slices instead of index arrays."""
        start, arrival = self.start, self.arrival
        self.out.occupy(self.now, transfer_s, start)
        np.add(start[:-shift], links.latency_s[:-shift], out=arrival[shift:])
        np.add(start[-shift:], links.latency_s[-shift:], out=arrival[:shift])
        # If the sender is the same as before, a port handles messages in the order in which they were sent.
        if links.pairing is not self.previous:
            self._check_order(arrival, self.last_arrival)
        self.into.occupy_shifted(arrival, transfer_s, shift)
        np.maximum(self.out.free_s, self.into.free_s, out=self.now)
        self.last_arrival, self.arrival = arrival, self.last_arrival

    def _advance_any(self, links: _Links, transfer_s: Floats) -> None:
        sources, targets = links.pairing.sources, links.pairing.targets
        call = self.now[sources]
        start = self._leave(links, call, transfer_s)
        arrival = start + links.latency_s
        order = self._queue(links, arrival, start)
        first = order[links.turns_in[0]]
        if links.pairing is not self.previous or len(links.turns_in) > 1:
            self._check_order(arrival[first], self.last_arrival[targets[first]])
        self._enter(links, order, arrival, transfer_s)
        # A port is free when its last message of the round is done: the rank's part ends then.
        self.now[sources] = np.maximum(call, self.out.free_s[sources])
        self.now[targets] = np.maximum(self.now[targets], self.into.free_s[targets])

    def _check_order(self, arrival: Floats, last_arrival: Floats) -> None:
        if self.overtaking and (arrival <= last_arrival).any():
            raise OutOfOrder

    def _leave(self, links: _Links, call: Floats, transfer_s: Floats) -> Floats:
        start = np.empty_like(call)
        for turn in links.turns_out:
            ranks = links.pairing.sources[turn]
            start[turn] = self.out.occupy_some(ranks, call[turn], transfer_s[turn])
        return start

    def _queue(self, links: _Links, arrival: Floats, start: Floats) -> Ints:
        """Return the messages sorted by target, and for each target in the order in which its input port handles
        them."""
        if len(links.turns_in) == 1:
            return links.turns_in[0]
        # An exchange that takes no time may have occurred between two messages of the same time.
        if self.instant_seen:
            raise OutOfOrder
        return sort_arrivals(links.pairing.targets, arrival, start, links.pairing.sources)

    def _enter(self, links: _Links, order: Ints, arrival: Floats, transfer_s: Floats) -> None:
        for turn in links.turns_in:
            messages = order[turn]
            ranks = links.pairing.targets[messages]
            self.into.occupy_some(ranks, arrival[messages], transfer_s[messages])
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
    """Return the time at which each rank ends, and the times at which its ports are free.

    Raise `OutOfOrder` if a message might overtake a message of an earlier round. With `overtaking=False`, input
    ports serve messages in the order of the rounds instead, whatever their order of arrival.
    """
    front = _Wavefront(now, out_free, in_free, overtaking=overtaking)
    links: _Links | None = None
    for part in plan.rounds():
        if links is None or links.pairing is not part.pairing:
            links = _links(part.pairing, network)
        front.advance(links, network.size_bytes(part.starts, part.stops))
    return front.now, front.out.free_s, front.into.free_s


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
    """Return the indices, among the sorted ranks, of the first occurrence of each rank, of the second, …"""
    ordered = np.sort(ranks)
    position = np.arange(len(ranks)) - np.searchsorted(ordered, ordered)
    return [np.flatnonzero(position == turn) for turn in range(int(position.max(initial=-1)) + 1)]
