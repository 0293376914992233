"""Memory that the ranks of one host share, and the barrier that orders their use of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from paceline.clusters.rank.groups import Group
from paceline.context import Combine
from paceline.links.memory import CACHE_LINE, SharedMemory, aligned
from paceline.links.operation import Doing, Operation
from paceline.replica.sums import BLOCK, combine_rows
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

__all__ = ["LINE_WORDS", "BarrierOperation", "BarrierVisits", "LocalWindow"]

LINE_WORDS = CACHE_LINE // 8


class LocalWindow:
    """A window of a local run."""

    def __init__(
        self, context: ProcessContext, group: Sequence[int], memory: SharedMemory, rows: int, like: Tensor
    ) -> None:
        self._context = context
        self.group = tuple(group)
        counters = CACHE_LINE * len(self.group)
        self._memory = memory
        self.arrivals = memory.words(0, LINE_WORDS * len(self.group))
        self.position = self.group.index(context.rank)
        self.visits = 0
        self.forgiving = False  # whether it goes on without ranks that are lost
        # Rows begin at cache lines, so that a row lies in memory as a tensor of its own would.
        stride = aligned(like.numel() * like.element_size()) // like.element_size()
        flat = memory.tensor(like.dtype, counters, rows * stride)
        self.tensor = flat.view(rows, stride)[:, : like.numel()]
        self._block = torch.empty(BLOCK, dtype=like.dtype)

    @classmethod
    def open(cls, context: ProcessContext, name: str, group: Group, rows: int, like: Tensor) -> LocalWindow:
        """Open the memory of this name; the first to ask has it made."""
        row_bytes = aligned(like.numel() * like.element_size())
        nbytes = CACHE_LINE * group.size + rows * row_bytes
        memory = context.driver.memory(f"{name}-{group.place}", nbytes)
        return cls(context, group.members, memory, rows, like)

    def row(self, number: int) -> Tensor:
        return self.tensor[number]

    def barrier(self) -> BarrierOperation:
        return BarrierOperation(self._context, self)

    def pause(self) -> BarrierOperation:
        """A barrier that is part of measuring: its wait is not the run's time."""
        return BarrierOperation(self._context, self, Kind.EVALUATE)

    async def reduce(
        self, columns: slice, rows: Sequence[int], into: Tensor, combine: Combine = "sum"
    ) -> None:
        start_s = self._context.now()
        combine_rows([self.tensor[row, columns] for row in rows], into, self._block, combine)
        nbytes = into.numel() * into.element_size() * (len(rows) - 1)
        self._context.span(Kind.RECEIVE, start_s, self._context.now(), nbytes=nbytes)


class BarrierVisits(Protocol):
    """How often each rank of a group has come to a barrier, as this rank knows it."""

    group: tuple[int, ...]
    position: int
    visits: int
    arrivals: memoryview
    forgiving: bool


class BarrierOperation(Operation[None]):
    """Done when every rank of the group has come to it."""

    __slots__ = ("_began_s", "_context", "_kind", "_missing", "_visit", "_window")

    doing = Doing.barrier

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
        """When it is awaited or started, not when it is made."""
        context, window = self._context, self._window
        self._began_s = context.now()
        window.visits += 1
        self._visit = window.visits
        window.arrivals[window.position * LINE_WORDS] = self._visit
        with context.board.bells.fence:  # of two who come at once, one at least sees the other
            pass
        # The last to come wakes the others. Two that come at once may both think so; that does no harm.
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
            self._context.span(self._kind, self._began_s, self._context.now(), self._waited_for())
        return self.done

    def _waited_for(self) -> int:
        """The rank that came last. It says so itself: who slept saw only the first of those that were missing."""
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
        """The position of a rank that has not come yet, or -1."""
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
