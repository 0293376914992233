"""Which units ranks exchange next. A collective needs all ranks, in the same order.

Ranks whose control flow depends on the data may need different units, or the same ones in another order. Ranks agree
in one of several ways, depending on which ranks an exchange waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paceline.collectives import all_reduce
from paceline.context import Context, Net, Shards


class Exchanges(NamedTuple):
    """What all ranks exchange next, in this order."""

    scattered: Sequence[int]
    gathered: Sequence[int]
    are_last: bool
    """Whether no rank has anything left to exchange in this micro-batch."""


class Agreement(Protocol):
    """Agreement of ranks on their next exchanges."""

    async def on(self, completed: Sequence[int], wanted: Sequence[int], *, ends: bool) -> Exchanges:
        """Propose units to reduce-scatter and to gather. Return the next exchanges of all ranks.

        Propose each completed unit once. Its exchange may be delayed. `ends` means that this rank has computed its
        micro-batch.
        """
        ...


class InStep:
    """All ranks propose the same, so there is nothing to agree on."""

    async def on(self, completed: Sequence[int], wanted: Sequence[int], *, ends: bool) -> Exchanges:
        return Exchanges(completed, wanted, ends)


class InOrder:
    """For shared memory: a gather waits for no other rank. Gradients are reduced in one order, the last unit first."""

    def __init__(self, units: Sequence[int]) -> None:
        self._order = list(reversed(units))
        self._completed: set[int] = set()
        self._next = 0

    async def on(self, completed: Sequence[int], wanted: Sequence[int], *, ends: bool) -> Exchanges:
        self._completed.update(completed)
        start = self._next
        while self._next < len(self._order) and self._order[self._next] in self._completed:
            self._next += 1
        scattered = self._order[start : self._next]
        if ends:
            self._completed.clear()
            self._next = 0
        return Exchanges(scattered, wanted, ends)


class ByVote:
    """For messages: ranks sum their votes. All ranks take part in a gather that any rank needs.

    A gradient is reduced when it is complete on all ranks. Source: Sergeev, Del Balso, "Horovod: fast and easy
    distributed deep learning in TensorFlow", 2018.
    """

    def __init__(self, ctx: Context, net: Net, units: Sequence[int]) -> None:
        self._net = net
        self._places = {unit: place for place, unit in enumerate(units)}
        self._completed: set[int] = set()
        self._votes = ctx.model.gradient.new_zeros(2 * len(units) + 1)

    async def on(self, completed: Sequence[int], wanted: Sequence[int], *, ends: bool) -> Exchanges:
        self._completed.update(completed)
        votes, count, places = self._votes, len(self._places), self._places
        votes.zero_()
        votes[[places[unit] for unit in self._completed]] = 1
        votes[[count + places[unit] for unit in wanted]] = 1
        votes[-1] = float(ends)
        await all_reduce(self._net, votes)
        found = votes.tolist()
        scattered = [unit for unit, place in reversed(places.items()) if found[place] == self._net.size]
        gathered = [unit for unit, place in places.items() if found[count + place]]
        self._completed.difference_update(scattered)
        return Exchanges(scattered, gathered, found[-1] == self._net.size)


def agreement_on(ctx: Context, net: Net, shards: Shards, *, in_step: bool) -> Agreement:
    """Return how these ranks agree. With `in_step`, they need the same units in the same order."""
    if in_step or net.size == 1:
        return InStep()
    units = [unit.number for unit in shards.units]
    return InOrder(units) if net.shares_memory else ByVote(ctx, net, units)
