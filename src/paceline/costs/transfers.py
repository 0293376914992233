"""The link model: how long it takes to move messages between ranks whose resources are shared.

A transfer uses the output port of its sender and the input port of its receiver. Each carries one message at a time.
The rule for a message of n bytes over a link with latency a and b seconds per byte:

1. The transfer starts at s, when its send has been called and the sender's port is free. It occupies the port until
   s + n b. The sender serves its messages in the order of the calls.
2. It arrives at s + a.
3. The receiver serves messages in `arrival_order`. A message begins to enter when the receiver's port is free, and
   occupies it for n b. Then it is delivered.

All users of the model call the code below: the simulated network and the emulated link call it for single messages, the
timing of schedules for arrays of messages as well.

Messages between hosts also pass resources that ranks share (`SharedLinks`): the network card of the sender's host, a
switch, and the card of the receiver's host. Each serves messages in the order in which they are sent or arrive at
the card. A message occupies each for n / bandwidth. Bytes flow through the port and the shared resources at the
same time. So the message has left when the last of these has carried it, and until then it occupies its port. A
card has no effect if it is faster than all ports of its ranks together. N messages through a card that is as fast
as one port take N times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def arrival_order(arrives_s: float, start_s: float, source: int) -> tuple[float, float, int]:
    """Return the key by which a receiver orders messages: arrival, then start, then the sender's rank.

    Messages of one sender with equal keys keep the order of their calls.
    """
    return arrives_s, start_s, source


def sort_arrivals(targets: Ints, arrives_s: Floats, start_s: Floats, sources: Ints) -> Ints:
    """Return the indices of messages sorted by target, and for each target in `arrival_order`."""
    return np.lexsort((sources, start_s, arrives_s, targets))


class Resource:
    """One resource in one direction."""

    __slots__ = ("free_s",)

    def __init__(self, free_s: float = 0.0) -> None:
        self.free_s = free_s

    def occupy(self, ready_s: float, carry_s: float) -> float:
        """Carry a message for `carry_s` seconds, from `ready_s` or when the resource is free. Return the start."""
        free_s = self.free_s
        if free_s > ready_s:
            ready_s = free_s
        self.free_s = ready_s + carry_s
        return ready_s

    def carry(self, ready_s: float, carry_s: float) -> float:
        """Occupy the resource. Return the end."""
        self.occupy(ready_s, carry_s)
        return self.free_s

    def end_s(self, ready_s: float, carry_s: float) -> float:
        """Return when `occupy` would end, without occupying the resource."""
        return max(ready_s, self.free_s) + carry_s


def idle_rounds_end_s(now_s: float, latency_s: float, carry_s: float, rounds: int) -> float:
    """Return when the last of `rounds` messages is delivered.

    Each is sent when the previous message has been delivered.
    """
    for _ in range(rounds):
        now_s = now_s + latency_s + carry_s  # the same sum as with resources, to the last bit
    return now_s


class SharedLinks:
    """Network cards of hosts, and the switch between them. Full duplex: a card sends and receives independently."""

    __slots__ = ("_card_s_per_byte", "_inputs", "_outputs", "_switch", "_switch_s_per_byte", "hosts")

    def __init__(
        self,
        hosts: Sequence[int],
        card_s_per_byte: float,
        switch_s_per_byte: float,
        resources: Sequence[Resource] | None = None,
    ) -> None:
        """`hosts` has the host of each rank. 0 seconds per byte for a card or a switch that is never a bottleneck.

        `resources` are the output cards, the input cards and the switch. None to create them.
        """
        self.hosts = hosts
        self._card_s_per_byte = card_s_per_byte
        self._switch_s_per_byte = switch_s_per_byte
        count = max(hosts) + 1
        all_resources = [Resource() for _ in range(2 * count + 1)] if resources is None else resources
        self._outputs, self._inputs = all_resources[:count], all_resources[count : 2 * count]
        self._switch = all_resources[-1]

    def crosses(self, source: int, to: int) -> bool:
        """Return whether a message between two ranks leaves its host."""
        return self.hosts[source] != self.hosts[to]

    def leave(self, source: int, now_s: float, nbytes: int) -> float:
        """Send a message from a host. Return when its card and the switch have carried it."""
        card_s = self._outputs[self.hosts[source]].carry(now_s, nbytes * self._card_s_per_byte)
        return max(card_s, self._switch.carry(now_s, nbytes * self._switch_s_per_byte))

    def flow_s(self, nbytes: int, carry_s: float) -> float:
        """Return the seconds from the first to the last byte of a message, given the seconds for its port alone."""
        return max(carry_s, nbytes * self._card_s_per_byte, nbytes * self._switch_s_per_byte)

    def enter(self, to: int, now_s: float, nbytes: int) -> float:
        """Receive a message whose first byte arrives at a host. Return when the last one has passed its card."""
        card_s = self._inputs[self.hosts[to]].carry(now_s, nbytes * self._card_s_per_byte)
        return max(card_s, now_s + self.flow_s(nbytes, 0.0))


class ResourceArray:
    """One resource of each rank in one direction, as arrays. No two ranks share a resource."""

    __slots__ = ("free_s",)

    def __init__(self, free_s: Floats) -> None:
        self.free_s = free_s.copy()

    def occupy(self, ready_s: Floats, carry_s: Floats, start_s: Floats) -> None:
        """Carry one message of each rank. Store the starts in `start_s`."""
        np.maximum(ready_s, self.free_s, out=start_s)
        np.add(start_s, carry_s, out=self.free_s)

    def occupy_shifted(self, ready_s: Floats, carry_s: Floats, shift: int) -> None:
        """Carry one message of each rank. `carry_s[r]` is for the message that rank r sends to rank r + `shift`."""
        np.maximum(ready_s, self.free_s, out=self.free_s)
        self.free_s[shift:] += carry_s[:-shift]
        self.free_s[:shift] += carry_s[-shift:]

    def occupy_some(self, ranks: Ints, ready_s: Floats, carry_s: Floats) -> Floats:
        """Carry one message of each of these ranks. Return the starts."""
        start_s: Floats = np.maximum(ready_s, self.free_s[ranks])
        self.free_s[ranks] = start_s + carry_s
        return start_s
