"""Memory shared by the ranks of one host, and the barrier that orders access to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from paceline.clusters.rank.groups import Group
from paceline.context import Combine
from paceline.links.memory.shared import CACHE_LINE, SharedMemory, aligned
from paceline.links.operation import Activity, Operation
from paceline.model.sums import BLOCK, combine_rows
from paceline.trace import Kind
from paceline.trace.spans import meeting_id, place_number

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

LINE_WORDS = CACHE_LINE // 8


class LocalWindow:
    """Window of a local run."""

    def __init__(
        self,
        context: ProcessContext,
        group: Sequence[int],
        memory: SharedMemory,
        rows: int,
        like: Tensor,
        place: int = 0,
    ) -> None:
        self._context = context
        self.place = place
        self.group = tuple(group)
        counters = CACHE_LINE * len(self.group)
        self._memory = memory
        self.arrivals = memory.words(0, LINE_WORDS * len(self.group))
        self.position = self.group.index(context.rank)
        self.visits = 0
        self.forgiving = False  # whether barriers continue without lost ranks
        # Rows begin at cache lines, so that a row has the same alignment as a separate tensor.
        stride = aligned(like.numel() * like.element_size()) // like.element_size()
        flat = memory.tensor(like.dtype, counters, rows * stride)
        self.tensor = flat.view(rows, stride)[:, : like.numel()]
        self._block = torch.empty(BLOCK, dtype=like.dtype)

    @classmethod
    def open(cls, context: ProcessContext, name: str, group: Group, rows: int, like: Tensor) -> LocalWindow:
        """Open the memory of this name. The first request creates it."""
        row_bytes = aligned(like.numel() * like.element_size())
        nbytes = CACHE_LINE * group.size + rows * row_bytes
        name = f"{name}-{group.place}"
        memory = context.driver.memory(name, nbytes)
        return cls(context, group.members, memory, rows, like, place_number(f"{name}-{nbytes}"))

    def row(self, number: int) -> Tensor:
        return self.tensor[number]

    def barrier(self) -> BarrierOperation:
        return BarrierOperation(self._context, self)

    def pause(self) -> BarrierOperation:
        """Wait at a barrier for a measurement. The wait does not count as the run's time."""
        return BarrierOperation(self._context, self, Kind.EVALUATE)

    async def reduce(
        self, columns: slice, rows: Sequence[int], into: Tensor, combine: Combine = "sum"
    ) -> None:
        start_s = self._context.now()
        combine_rows([self.tensor[row, columns] for row in rows], into, self._block, combine)
        nbytes = into.numel() * into.element_size() * (len(rows) - 1)
        self._context.span(Kind.RECEIVE, start_s, self._context.now(), nbytes=nbytes)


class BarrierVisits(Protocol):
    """Number of visits of each rank in a group to a barrier, as far as this rank has seen them."""

    place: int
    """Number of the barrier, the same on every rank of the group: see `place_number`."""
    group: tuple[int, ...]
    position: int
    visits: int
    arrivals: memoryview
    forgiving: bool


class BarrierOperation(Operation[None]):
    """Done when every rank of the group has arrived."""

    __slots__ = ("_began_s", "_context", "_kind", "_missing", "_visit", "_window")

    doing = Activity.barrier

    def __init__(self, context: ProcessContext, window: BarrierVisits, kind: Kind = Kind.WAIT) -> None:
        super().__init__(context)
        self._kind = kind
        self._context = context
        self._window = window
        self._began_s = 0.0
        self._missing = -1
        self._visit = 0
        self.result = None

    def _arrive(self) -> None:
        """Register the arrival. Called on the first poll, not when the operation is created."""
        context, window = self._context, self._window
        self._began_s = context.now()
        window.visits += 1
        self._visit = window.visits
        window.arrivals[window.position * LINE_WORDS] = self._visit
        with context.board.bells.fence:  # if two ranks arrive at the same time, at least one sees the other
            pass
        # The last rank wakes the others. Two ranks that arrive at the same time may both do so; that does no harm.
        if self._find_missing() < 0:
            window.arrivals[window.position * LINE_WORDS + 1] = self._visit
            for rank in window.group:
                if rank != context.rank:
                    context.board.bells.ring(rank)

    def poll(self) -> bool:
        if not self._visit:
            self._arrive()
        if not self.done and self._find_missing() < 0:
            self.done = True
            meeting, now_s = meeting_id(self._window.place, self._visit), self._context.now()
            self._context.span(self._kind, self._began_s, now_s, self._waited_for(), message=meeting)
        return self.done

    def _waited_for(self) -> int:
        """Return the rank that arrived last. That rank marks itself: a sleeping rank sees only the first missing
        one."""
        arrivals, group = self._window.arrivals, self._window.group
        last = [i for i in range(len(group)) if arrivals[i * LINE_WORDS + 1] == self._visit]
        position = last[0] if last else self._missing
        return group[position] if position >= 0 else -1

    def awaited(self) -> tuple[int, ...]:
        group = self._window.group
        return tuple(group[i] for i in range(len(group)) if self._is_missing(i))

    def __str__(self) -> str:
        return "barrier"

    def _find_missing(self) -> int:
        """Return the position of a rank that has not arrived yet, or -1."""
        if self._missing >= 0 and self._is_missing(self._missing):
            return self._missing
        for i in range(len(self._window.group)):
            if self._is_missing(i):
                self._missing = i
                return i
        return -1

    def _is_missing(self, position: int) -> bool:
        window = self._window
        if window.arrivals[position * LINE_WORDS] >= self._visit:
            return False
        return not (window.forgiving and self._context.is_lost(window.group[position]))
