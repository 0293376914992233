"""The communication part of a context in a real process."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.clusters.base.checks import check_no_memory
from paceline.clusters.process.window import LocalWindow
from paceline.clusters.rank.counter import LATE
from paceline.clusters.rank.groups import Group
from paceline.collectives.interpreter import interpret
from paceline.context import ANY, Combine
from paceline.errors import ConfigurationError
from paceline.links.receiving import RecvOperation
from paceline.links.sending import SendOperation
from paceline.model.devices import host_copy
from paceline.schedules.collectives.collective import Collective
from paceline.trace import Kind
from paceline.trace.spans import meeting_id, place_number

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext


class ProcessNet:
    """A group of ranks, seen from one of them. It satisfies `paceline.context.Net`."""

    def __init__(self, context: ProcessContext, group: Group) -> None:
        self._context = context
        self._group = group
        self._port = context.port
        self._members = group.members
        self._base = group.base
        self.rank = group.rank
        self.size = group.size
        self.hosts = group.hosts

    def seen_by(self, context: ProcessContext) -> ProcessNet:
        """Return the same group for another program of this rank."""
        return ProcessNet(context, self._group)

    @property
    def shares_memory(self) -> bool:
        # Tensors on a device are not in shared memory: sharing them would need copies. Ranks of an emulated host use
        # its emulated link.
        is_real = self._context.wiring.emulated is None and not self._context.job.regroups
        return is_real and self._port.device is None and self._is_on_one_host

    def send(self, to: int, tensor: Tensor, *, tag: int = 0, header: tuple[float, ...] = ()) -> SendOperation:
        return self._port.send(self._context, self._members[to], tensor, self._base | tag, header)

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> RecvOperation:
        member = ANY if source == ANY else self._members[source]
        operation = self._port.recv(self._context, member, into, combine, self._base | tag)
        operation.positions = self._group.positions
        return operation

    def execute(self, collective: Collective, data: Tensor, *, combine: Combine) -> Awaitable[None]:
        if collective.algorithm == "native":
            return self._execute_natively(data, combine)
        if not data.is_cpu:
            return self._execute_staged(collective, data, combine)
        next_tag = self._group.next_collective
        return interpret(self._context, self, collective, data, combine=combine, next_tag=next_tag)

    async def _execute_staged(self, collective: Collective, data: Tensor, combine: Combine) -> None:
        """Copy a device tensor to CPU memory once, and back, not chunk by chunk. Links transfer CPU memory only."""
        host, next_tag = host_copy(data), self._group.next_collective
        await interpret(self._context, self, collective, host, combine=combine, next_tag=next_tag)
        data.copy_(host)

    async def _execute_natively(self, data: Tensor, combine: Combine) -> None:
        context = self._context
        wiring = context.wiring
        check_no_memory(context.job, "native")
        if wiring.is_strict:
            remedy = 'torch.distributed does not pass it: use another algorithm, or link="shared-memory"'
            bound = f"must not be native on {wiring.words}"
            raise ConfigurationError("algorithm", bound, "native", remedy)
        start_s = context.now()
        meeting = meeting_id(place_number(f"native-{self._group.number}"), self._group.next_collective())
        context.native.all_reduce(data, context.rank, self._members, combine)
        context.span(Kind.RECEIVE, start_s, context.now(), nbytes=data.nbytes, message=meeting)

    def window(self, name: str, *, rows: int, like: Tensor) -> LocalWindow:
        context = self._context
        check_no_memory(context.job, "shared")
        if not self._is_on_one_host:
            bound = f"needs ranks that share memory, which those on {context.wiring.words} do not"
            raise ConfigurationError("window", bound, name, 'use link="shared-memory" or pass messages')
        key = (name, self._group.place, rows, like.numel(), like.dtype)
        if key not in context.windows:
            context.windows[key] = LocalWindow.open(context, name, self._group, rows, like)
        return context.windows[key]

    @property
    def _is_on_one_host(self) -> bool:
        return len(set(self.hosts)) == 1

    def split(self, ranks: Sequence[int]) -> ProcessNet:
        members = ranks if self._group.number == 0 else [self._members[rank] for rank in ranks]
        return ProcessNet(self._context, self._context.groups.find(members))

    def count(self) -> int:
        outcome = self._context.outcome
        number = self._context.driver.count_update(self._context.begun)
        outcome.counted = number if number < LATE else outcome.counted
        return number
