"""The communication part of a context in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from paceline.clusters.base.checks import check_no_memory
from paceline.clusters.rank.counter import LATE
from paceline.clusters.rank.groups import Group
from paceline.clusters.simulated.messages import RecvEvent, SendEvent
from paceline.clusters.simulated.whole_collective import CollectivePart, suits
from paceline.clusters.simulated.window import SimulatedWindow, View
from paceline.collectives.interpreter import interpret
from paceline.context import ANY, Combine
from paceline.errors import ConfigurationError
from paceline.schedules.collectives.collective import Collective

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext


class SimulatedNet:
    """The group of all ranks, seen from one of them. It satisfies `paceline.context.Net`."""

    __slots__ = ("_base", "_context", "group", "hosts", "rank", "size")

    def __init__(self, context: SimulatedContext, group: Group) -> None:
        self._context = context
        self.group = group
        self._base = group.base
        self.rank = group.rank
        self.size = group.size
        self.hosts = group.hosts

    @property
    def shares_memory(self) -> bool:
        return self._context.world.shares_memory

    def seen_by(self, context: SimulatedContext) -> SimulatedNet:
        """Return the same group for another program of this rank."""
        return type(self)(context, self.group)

    def send(self, to: int, tensor: Tensor, *, tag: int = 0, header: tuple[float, ...] = ()) -> SendEvent:
        return SendEvent(self._context, to, tensor, tag, header)

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> RecvEvent:
        return RecvEvent(self._context, source, into, combine, tag)

    def execute(self, collective: Collective, data: Tensor, *, combine: Combine) -> Awaitable[None]:
        if collective.algorithm == "native":
            bound, remedy = "must not be native in a simulation", "torch.distributed has no virtual time"
            raise ConfigurationError("algorithm", bound, "native", remedy)
        if suits(collective, data.numel()):
            return CollectivePart(self._context, self, collective, data, combine)
        next_tag = self.group.next_collective
        return interpret(self._context, self, collective, data, combine=combine, next_tag=next_tag)

    def window(self, name: str, *, rows: int, like: Tensor) -> View:
        check_no_memory(self._context.job, "shared")
        if len(set(self.hosts)) > 1:
            remedy = "use hosts=1 or pass messages"
            raise ConfigurationError("window", "needs ranks of one host", name, remedy)
        world, key = self._context.world, (name, self.group.place)
        if key not in world.windows:
            world.windows[key] = SimulatedWindow(world.kernel, self.group.members, rows, like, world.memory)
        return world.windows[key].seen_by(self._context)

    def split(self, ranks: Sequence[int]) -> SimulatedNet:
        return self._of(ranks)

    def _of(self, members: Sequence[int]) -> SimulatedNet:
        group = self._context.groups.find(members)
        return (SimulatedGroupNet if group.number else SimulatedNet)(self._context, group)

    def count(self) -> int:
        world, outcome = self._context.world, self._context.outcome
        number = world.updates.count(self._context.begun)
        outcome.counted = number if number < LATE else outcome.counted
        return number


class SimulatedGroupNet(SimulatedNet):
    """A group of some of the ranks. Ranks are addressed by their positions."""

    __slots__ = ()

    def send(self, to: int, tensor: Tensor, *, tag: int = 0, header: tuple[float, ...] = ()) -> SendEvent:
        return SendEvent(self._context, self.group.members[to], tensor, self._base | tag, header)

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> RecvEvent:
        group = self.group
        member = ANY if source == ANY else group.members[source]
        return RecvEvent(self._context, member, into, combine, self._base | tag, group.positions)

    def split(self, ranks: Sequence[int]) -> SimulatedNet:
        return self._of([self.group.members[rank] for rank in ranks])
