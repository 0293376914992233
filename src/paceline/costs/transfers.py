"""The link model: how long it takes to move messages between ranks whose resources are shared.

A transfer uses two lists of resources: those of its sender (the output port) and those of its receiver (the input
port). Each resource carries one message at a time in each direction. This is the rule, for a message of n bytes over a
link with latency a and b seconds per byte:

1. The transfer starts at s, when its send has been called and all resources of the sender are free. It occupies them
   until s + n b. The sender serves its messages in the order of the calls.
2. It arrives at s + a.
3. The receiver serves messages in `arrival_order`. A message begins to enter when all resources of the receiver are
   free, and occupies them for n b. Then it is delivered.

All users of the model call the code below: the simulated network and the emulated link call it for single messages, the
timing of schedules for arrays of messages as well.

A resource that several ranks share, such as the network card of a host, is one more `Resource` in the `combined`
resources of each of these ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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


class Occupied(Protocol):
    """Resources that a message occupies together."""

    free_s: float
    """Time from which all of them are free."""

    def occupy(self, ready_s: float, carry_s: float) -> float:
        """Carry a message for `carry_s` seconds, from `ready_s` or when the resources are free. Return the start."""


class Resource:
    """One resource in one direction."""

    __slots__ = ("free_s",)

    def __init__(self, free_s: float = 0.0) -> None:
        self.free_s = free_s

    def occupy(self, ready_s: float, carry_s: float) -> float:
        """See `Occupied.occupy`."""
        free_s = self.free_s
        if free_s > ready_s:
            ready_s = free_s
        self.free_s = ready_s + carry_s
        return ready_s

    def end_s(self, ready_s: float, carry_s: float) -> float:
        """Return when `occupy` would end, without occupying the resource."""
        return max(ready_s, self.free_s) + carry_s


def idle_rounds_end_s(now_s: float, latency_s: float, carry_s: float, rounds: int) -> float:
    """Return when the last of `rounds` messages is delivered. Each is sent when the one before has been delivered."""
    for _ in range(rounds):
        now_s = now_s + latency_s + carry_s  # the same sum as with resources, to the last bit
    return now_s


class _Combined:
    """Several resources that a message occupies at the same time."""

    __slots__ = ("_members",)

    def __init__(self, members: Sequence[tuple[Resource, float]]) -> None:
        self._members = members

    @property
    def free_s(self) -> float:
        return max(resource.free_s for resource, _ in self._members)

    @free_s.setter
    def free_s(self, free_s: float) -> None:
        for resource, _ in self._members:
            resource.free_s = free_s

    def occupy(self, ready_s: float, carry_s: float) -> float:
        start_s = max(ready_s, self.free_s)
        for resource, factor in self._members:
            resource.occupy(start_s, carry_s * factor)
        return start_s


def combined(own: Resource, *shared: tuple[Resource, float]) -> Occupied:
    """Return the resources of a rank: its own port, and shared resources.

    A shared resource is given with the seconds that it needs for a message, as a multiple of the port's seconds: 0.25
    for a card that is four times as fast as the port.
    """
    return _Combined([(own, 1.0), *shared]) if shared else own


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
