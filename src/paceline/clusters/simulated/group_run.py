"""A stage of a tensor group in virtual time: all its passes for one micro-batch, and the rings between, as one event.

Message by message, a step of a large model has millions of events: a stage of six blocks is 24 passes and 12 rings, and
a ring of 8 ranks has 112 messages. Here each rank joins a run and parks until its end. When the last has joined, the
whole is timed at once (`run_times`). A message that arrives at one of the ranks meanwhile takes its turn at the port,
and the rest is timed again. What is found equals what messages one by one would find.

`DisturbedRun` is raised where it would not: if a rank of the group sends something else meanwhile, or if a message came
to a rank after the run's first one would have, but before the last rank joined. The cluster then simulates message by
message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.clusters.simulated.kernel import Event
from paceline.clusters.simulated.messages import SendEvent
from paceline.clusters.simulated.network import Disturbed, DisturbedRun, Network
from paceline.clusters.simulated.run_plan import Ring, RunPlan
from paceline.clusters.simulated.run_times import (
    Apart,
    EachMark,
    Guest,
    Links,
    Mark,
    follow_each,
    follow_together,
)
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.rank.groups import Group
    from paceline.clusters.simulated.context import SimulatedContext

__all__ = ["GroupRun", "RunEvent"]

T = TypeVar("T")


class RunEvent(Event[T]):
    """One rank's part in a run."""

    __slots__ = ("_group", "_run", "context", "joined_s", "micro", "out_free_s", "plan", "seconds", "step")

    def __init__(
        self, context: SimulatedContext, group: Group, plan: RunPlan, micro: int, run: Callable[[], T]
    ) -> None:
        super().__init__()
        self.context = context
        self._group = group
        self.plan = plan
        self.micro = micro
        self._run = run

    def start(self) -> None:
        context, plan = self.context, self.plan
        self.joined_s, self.step = context.kernel.now, context.step
        self.seconds = plan.seconds(context.price)
        self.result = self._run()
        if plan.meets:
            self._join()
        else:
            self._go_alone()

    def _join(self) -> None:
        group, runs = self._group, self.context.world.runs
        self.out_free_s = self.context.network.ports[self.context.rank].out_free_s
        key = group.base | group.next_collective()
        run = runs.get(key)
        if run is None:
            run = runs[key] = GroupRun(self.plan, group.members)
        run.join(group.rank, self)
        if run.is_complete:
            del runs[key]

    def _go_alone(self) -> None:
        times_s = [self.joined_s]
        for seconds in self.seconds:
            times_s.append(times_s[-1] + seconds)
        self.context.record_packed(self.plan.packed(times_s, self.micro, self.step))
        self.context.kernel.at(times_s[-1], self.context.kernel.finish, self)

    def __str__(self) -> str:
        return "compute and meet its tensor group"


class GroupRun:
    """One run of all ranks of a group."""

    def __init__(self, plan: RunPlan, members: Sequence[int]) -> None:
        self._plan = plan
        self._members = members
        self._events: dict[int, RunEvent[Any]] = {}
        self._guests: list[list[Guest]] = [[] for _ in members]
        self._packets: list[tuple[SendEvent, Guest]] = []
        """Those that came since it was last timed."""
        self._version = 0
        """Of the times: an end that was foretold by an earlier one does not come."""
        self._ended = 0

    @property
    def is_complete(self) -> bool:
        return len(self._events) == len(self._members)

    def join(self, position: int, event: RunEvent[Any]) -> None:
        self._events[position] = event
        if self.is_complete:
            self._begin([self._events[place] for place in range(len(self._members))])

    def _begin(self, events: list[RunEvent[Any]]) -> None:
        self._all = events
        self._context = context = events[0].context
        self._kernel, network = context.kernel, context.network
        self._ports = [network.ports[rank] for rank in self._members]
        self._positions = {rank: position for position, rank in enumerate(self._members)}
        right = [*self._members[1:], self._members[0]]
        costs = [network.cost(*pair) for pair in zip(self._members, right, strict=True)]
        self._links = Links([each[0] for each in costs], [each[1] for each in costs], self._members)
        self._check(network)
        now_s = [event.joined_s for event in events]
        out_s = [max(port.out_free_s, now) for port, now in zip(self._ports, now_s, strict=True)]
        in_s = [max(port.in_free_s, now) for port, now in zip(self._ports, now_s, strict=True)]
        self._each: list[EachMark] | None = None
        self._steps = self._even_steps()
        together = self._steps and all(len(set(each)) == 1 for each in (now_s, out_s, in_s))
        if together:
            self._marks = [Mark(now_s[0], out_s[0], in_s[0], 0)]
        else:
            self._each = [EachMark(now_s, out_s, in_s, [0] * len(events))]
        for port in self._ports:
            port.enter_run(self)
        network.under_way += 1
        self._foretell()

    def _check(self, network: Network) -> None:
        """Whether nothing has happened since the first rank joined that a ring's first message had to do with."""
        if network.is_reserved:
            raise Disturbed  # it is the ring of other ranks that cannot be timed as a whole
        for position, port in enumerate(self._ports):
            left = self._all[position - 1]
            leaves_s = max(left.joined_s + left.seconds[0], left.out_free_s)
            came = port.instant_s >= leaves_s + self._links.latency_s[position - 1]
            if came or port.out_free_s != self._all[position].out_free_s:
                raise DisturbedRun

    def _even_steps(self) -> list[tuple[float, int, float]]:
        """What all ranks do alike; nothing, if they do not."""
        events, links = self._all, self._links
        first = events[0].seconds
        alike = all(event.seconds is first or event.seconds == first for event in events)
        if not alike or not links.are_equal:
            return []
        per_byte_s, passes = links.per_byte_s[0], iter(first)
        steps = []
        for ring in self._plan.steps:
            if ring is None:
                steps.append((next(passes), 0, 0.0))
            elif ring.even_bytes is None:
                return []
            else:
                steps.append((0.0, ring.rounds, ring.even_bytes * per_byte_s))
        return steps

    # Messages from outside

    def receive(self, packet: SendEvent) -> None:
        """A message reaches the port in of one of the ranks now."""
        guest = Guest(packet.begins_s, packet.start_s, packet.source, packet.carry_s)
        line = self._guests[self._positions[packet.to]]
        if line and line[-1].delivered_s and line[-1].arrives_s == guest.arrives_s:
            raise DisturbedRun  # the order of the two was settled without this one
        line.append(guest)
        if not self._packets:  # others may come at this instant: they are looked at together
            self._kernel.at(self._kernel.now, self._settle, None)
        self._packets.append((packet, guest))

    def _settle(self, _: None) -> None:
        new, self._packets = self._packets, []
        for line in self._guests:
            line.sort(key=lambda guest: (guest.arrives_s, guest.start_s, guest.source))
        if self._each is None and not self._guests_are_alike():
            self._part()
        self._go_back()
        self._foretell()
        for packet, guest in new:
            packet.begins_s, packet.delivered_s = guest.begins_s, guest.delivered_s
            self._kernel.at(guest.delivered_s, self._context.network.ports[packet.to].deliver, packet)

    def _guests_are_alike(self) -> bool:
        first = [guest.alike for guest in self._guests[0]]
        return all([guest.alike for guest in line] == first for line in self._guests[1:])

    def _part(self) -> None:
        """From now on follow each rank."""
        ranks = len(self._members)
        self._each = [EachMark(*([each] * ranks for each in mark)) for mark in self._marks]  # type: ignore[arg-type]

    def _go_back(self) -> None:
        """To the last step that had ended by now. What comes after it is to be timed again."""
        now_s = self._kernel.now
        if self._each is None:
            del self._marks[max(1, bisect_right(self._marks, now_s, key=lambda mark: mark.now_s)) :]
        else:
            del self._each[max(1, bisect_right(self._each, now_s, key=lambda mark: max(mark.now_s))) :]

    # Times

    def _foretell(self) -> None:
        self._version += 1
        if self._each is None:
            try:
                self._foretell_together()
                return
            except Apart:
                self._part()
        assert self._each is not None
        self._in_s = follow_each(self._each_steps(), self._each, self._links, self._guests)
        for position, end_s in enumerate(self._each[-1].now_s):
            if self._ports[position].run is self:
                self._kernel.at(end_s, self._end_one, (self._version, position))

    def _foretell_together(self) -> None:
        in_s = follow_together(self._steps, self._marks, self._links.latency_s[0], self._guests[0])
        self._in_s = [in_s] * len(self._members)
        self._kernel.at(self._marks[-1].now_s, self._end_together, self._version)
        for line in self._guests[1:]:
            for guest, known in zip(line, self._guests[0], strict=True):
                guest.begins_s, guest.delivered_s = known.begins_s, known.delivered_s

    def _each_steps(self) -> list[tuple[Sequence[float], Ring | None]]:
        passes = iter(zip(*(event.seconds for event in self._all), strict=True))
        return [(next(passes) if ring is None else (), ring) for ring in self._plan.steps]

    def _end_together(self, version: int) -> None:
        if version != self._version:
            return
        times_s = [mark.now_s for mark in self._marks]
        first = self._all[0]
        packed = self._plan.packed(times_s, first.micro, first.step)
        for position, event in enumerate(self._all):
            event.context.record_packed(packed)
            self._leave(position, times_s[-1])

    def _end_one(self, which: tuple[int, int]) -> None:
        version, position = which
        if version != self._version or self._each is None:
            return
        self._note(position, self._each)
        self._leave(position, self._each[-1].out_free_s[position])

    def _leave(self, position: int, out_free_s: float) -> None:
        """A rank's part has ended."""
        event = self._all[position]
        outcome = event.context.outcome
        outcome.bytes_sent += self._plan.sent_bytes[position]
        outcome.messages_sent += self._plan.messages
        self._ports[position].leave_run(out_free_s, self._in_s[position])
        self._ended += 1
        if self._ended == len(self._all):
            self._context.network.under_way -= 1
        self._kernel.finish(event)

    def _note(self, position: int, marks: Sequence[EachMark]) -> None:
        """A rank's spans. Those of a ring are a wait for the last that came to it, and what was received."""
        event = self._all[position]
        span = event.context.span
        for ring, before, after in zip(self._plan.steps, marks, marks[1:], strict=False):
            start_s, end_s = before.now_s[position], after.now_s[position]
            if ring is None:
                span(Kind(self._plan.kind), start_s, end_s, event.micro)
                continue
            last_s = max(before.now_s)
            if start_s < last_s:
                span(Kind.WAIT, start_s, min(last_s, end_s), self._members[before.now_s.index(last_s)])
            span(Kind.RECEIVE, min(max(start_s, last_s), end_s), end_s, nbytes=ring.received_bytes[position])
