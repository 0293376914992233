"""Window of the simulation: memory of one host. A read takes time by its bytes, a barrier takes one latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.clusters.simulated.events import WorkTimer
from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.process import Event
from paceline.context import Combine
from paceline.costs.link import Link
from paceline.links.memory.shared import aligned
from paceline.model.sums import BLOCK, combine_rows
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext


class SimulatedWindow:
    """The memory of a window. Each rank accesses it through a `View`."""

    def __init__(
        self, kernel: Kernel, group: Sequence[int], rows: int, like: Tensor, memory: Link | None = None
    ) -> None:
        """Create a window. `memory` is the cost of its reads and barriers. None for a window that is used for
        measuring."""
        self.kernel = kernel
        self.memory = Link.ideal() if memory is None else memory
        self.group = tuple(group)
        stride = aligned(like.numel() * like.itemsize) // like.itemsize
        self.tensor = torch.zeros(rows, stride, dtype=like.dtype, device=like.device)[:, : like.numel()]
        self.block = torch.empty(BLOCK, dtype=like.dtype, device=like.device)
        self.waiting: list[BarrierEvent] = []
        self.expected = len(self.group)
        """Number of ranks that a barrier waits for."""
        self._absent: set[int] = set()

    def do_without(self, rank: int) -> None:
        """Exclude a rank from all barriers from now on."""
        if rank in self._absent or rank not in self.group:
            return
        self._absent.add(rank)
        self.expected -= 1
        self.waiting = [event for event in self.waiting if event.rank != rank]
        self.release(rank)

    def release(self, last: int) -> None:
        """Release the waiting ranks if all have arrived. `last` is the last one to arrive."""
        if len(self.waiting) == self.expected:
            come, self.waiting = self.waiting, []
            meeting = come[0].context.world.next_meeting() if come else NO_MESSAGE
            latency_s = self.memory.latency_s
            for event in come:
                event.meeting = meeting
                if latency_s:
                    self.kernel.at(self.kernel.now + latency_s, event.end, last)
                else:
                    event.end(last)

    def missing(self) -> list[int]:
        """Return the ranks that have not arrived at the current barrier."""
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
        """Wait at a barrier for a measurement. It takes no virtual time."""
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
            # The processor copies: reads were measured on all ranks at once, and take longer beside computations.
            cores = context.world.cores
            shared = 1.0 if cores is None else cores.slowdown(len(self._window.group))
            await WorkTimer(context, read_s / shared)
        context.span(Kind.RECEIVE, start_s, context.now(), nbytes=nbytes)


class BarrierEvent(Event[None]):
    """Done when every rank of the window has arrived."""

    __slots__ = ("_began_s", "_window", "context", "meeting", "rank")

    meeting: int
    """Id in the spans of all ranks. Set when the last one arrives."""

    def __init__(self, window: SimulatedWindow, context: SimulatedContext) -> None:
        super().__init__()
        self._window = window
        self.context = context
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
        if self.done:  # cancelled before
            return
        if self._began_s < self._window.kernel.now:
            now_s = self._window.kernel.now
            self.context.span(Kind.WAIT, self._began_s, now_s, last, message=self.meeting)
        self._window.kernel.finish(self)

    def __str__(self) -> str:
        return f"barrier for rank {', '.join(map(str, self.missing()))}"
