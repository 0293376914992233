"""A window of the simulated world: one host's memory. Reading it takes time by its bytes, a barrier its latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.clusters.simulated.events import Timer
from paceline.clusters.simulated.kernel import Event, Kernel
from paceline.context import Combine
from paceline.costs.link import Link
from paceline.links.memory import aligned
from paceline.replica.sums import BLOCK, combine_rows
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext

__all__ = ["SimulatedWindow", "View"]


class SimulatedWindow:
    """The memory itself. Each rank sees it through a `View`."""

    def __init__(
        self, kernel: Kernel, group: Sequence[int], rows: int, like: Tensor, memory: Link | None = None
    ) -> None:
        """`memory`: what its reads and barriers cost. None: nothing, for it is there to measure."""
        self.kernel = kernel
        self.memory = Link.ideal() if memory is None else memory
        self.group = tuple(group)
        stride = aligned(like.numel() * like.itemsize) // like.itemsize
        self.tensor = torch.zeros(rows, stride, dtype=like.dtype, device=like.device)[:, : like.numel()]
        self.block = torch.empty(BLOCK, dtype=like.dtype, device=like.device)
        self.waiting: list[BarrierEvent] = []
        self.expected = len(self.group)
        """How many ranks a barrier waits for."""
        self._absent: set[int] = set()

    def do_without(self, rank: int) -> None:
        """From now on barriers do not wait for this rank."""
        if rank in self._absent or rank not in self.group:
            return
        self._absent.add(rank)
        self.expected -= 1
        self.waiting = [event for event in self.waiting if event.rank != rank]
        self.release(rank)

    def release(self, last: int) -> None:
        """Let those who wait go on if all have come; `last` was the last to come."""
        if len(self.waiting) == self.expected:
            come, self.waiting = self.waiting, []
            latency_s = self.memory.latency_s
            for event in come:
                if latency_s:
                    self.kernel.at(self.kernel.now + latency_s, event.end, last)
                else:
                    event.end(last)

    def missing(self) -> list[int]:
        """Who has not come to the barrier that others wait at."""
        here = {event.rank for event in self.waiting}
        return [rank for rank in self.group if rank not in here and rank not in self._absent]

    def seen_by(self, context: SimulatedContext) -> View:
        return View(self, context)


class View:
    """One rank's view of a window."""

    def __init__(self, window: SimulatedWindow, context: SimulatedContext) -> None:
        self._window = window
        self._context = context
        self.tensor = window.tensor

    def row(self, number: int) -> Tensor:
        return self.tensor[number]

    def barrier(self) -> BarrierEvent:
        return BarrierEvent(self._window, self._context)

    def pause(self) -> BarrierEvent:
        """A barrier that is part of measuring: it takes no virtual time."""
        return BarrierEvent(self._window, self._context)

    async def reduce(
        self, columns: slice, rows: Sequence[int], into: Tensor, combine: Combine = "sum"
    ) -> None:
        context = self._context
        start_s = context.now()
        if not into.is_meta:
            combine_rows([self.tensor[row, columns] for row in rows], into, self._window.block, combine)
        nbytes = into.numel() * into.itemsize * (len(rows) - 1)
        read_s = nbytes * self._window.memory.seconds_per_byte
        if read_s:
            await Timer(context, read_s)
        context.span(Kind.RECEIVE, start_s, context.now(), nbytes=nbytes)


class BarrierEvent(Event[None]):
    """Done when every rank of the window has come to it."""

    __slots__ = ("_began_s", "_context", "_window", "rank")

    def __init__(self, window: SimulatedWindow, context: SimulatedContext) -> None:
        super().__init__()
        self._window = window
        self._context = context
        self.rank = context.rank
        self._began_s = 0.0
        self.result = None

    def start(self) -> None:
        window = self._window
        self._began_s = window.kernel.now
        window.waiting.append(self)
        window.release(self.rank)

    def missing(self) -> list[int]:
        return self._window.missing()

    def end(self, last: int) -> None:
        if self.done:  # cancelled meanwhile
            return
        if self._began_s < self._window.kernel.now:
            self._context.span(Kind.WAIT, self._began_s, self._window.kernel.now, last)
        self._window.kernel.finish(self)

    def __str__(self) -> str:
        return f"barrier for rank {', '.join(map(str, self.missing()))}"
