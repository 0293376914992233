"""A stage of a tensor group in virtual time: all passes for one micro-batch, and the rings between them, as one event.

Message by message, a step of a large model has millions of events: a stage of six blocks has 24 passes and 12 rings,
and a ring of 8 ranks has 112 messages. Here each rank joins a stage timing and parks until its end. When the last rank
has joined, the whole stage is timed (`stage_times`). If another message arrives at one of the ranks, it takes its turn
at the port, and the rest is timed again. The result equals a simulation message by message.

The stage falls back to single messages (`group_operation`) if a rank of the group sends another message in the stage,
or if a message arrives at a rank after the first message of the stage would have, but before the last rank has joined.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from paceline.clusters.simulated.events import Timer
from paceline.clusters.simulated.group_operation import Call, GroupOperation
from paceline.clusters.simulated.group_part import GroupPart
from paceline.clusters.simulated.messages import SendEvent
from paceline.clusters.simulated.stage_plan import Ring, StagePlan
from paceline.clusters.simulated.stage_times import Diverged, Lanes, Mark, OutsideMessage, Step, follow
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE, pack_span

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext
    from paceline.clusters.simulated.net import SimulatedNet

T = TypeVar("T")


class StagePart(GroupPart[T]):
    """One rank's part in a stage."""

    __slots__ = ("_run", "micro", "plan", "seconds", "step")

    def __init__(
        self, context: SimulatedContext, net: SimulatedNet, plan: StagePlan, micro: int, run: Callable[[], T]
    ) -> None:
        super().__init__(context, net)
        self.plan = plan
        self.micro = micro
        self._run = run

    def start(self) -> None:
        context, plan = self.context, self.plan
        self.step = context.step
        self.seconds = plan.seconds(context.price)
        self.result = self._run()
        if plan.meets:
            self.join()
        else:
            self._go_alone()

    def _go_alone(self) -> None:
        kernel = self.context.kernel
        times_s = [kernel.now]
        for seconds in self.seconds:
            times_s.append(times_s[-1] + seconds)
        self.context.record_packed(self.plan.packed(times_s, self.micro, self.step))
        kernel.at(times_s[-1], kernel.finish, self)

    def new_operation(self) -> StageTiming:
        return StageTiming(self.context, self.plan, self.net.group.members)

    async def run_messages(self) -> None:
        context, seconds = self.context, iter(self.seconds)
        for ring in self.plan.steps:
            if ring is not None:
                await self._go_round(ring)
                continue
            start_s, pass_s = context.kernel.now, next(seconds)
            if pass_s:
                await Timer(context, pass_s)
            context.span(Kind(self.plan.kind), start_s, context.kernel.now, self.micro)

    async def _go_round(self, ring: Ring) -> None:
        net = self.net
        right, left = (net.rank + 1) % net.size, (net.rank - 1) % net.size
        for lengths in ring.sent_bytes:
            sending = self.context.start(net.send(right, _blank(lengths[net.rank]), tag=self.tag))
            await net.recv(left, _blank(lengths[left]), tag=self.tag)
            await sending


def _blank(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")


class StageTiming(GroupOperation):
    """Timing of one stage for all ranks of a group."""

    parts: dict[int, StagePart[object]]

    def __init__(self, context: SimulatedContext, plan: StagePlan, members: Sequence[int]) -> None:
        super().__init__(context, members)
        self._plan = plan
        self._meeting = context.world.next_meeting()
        right = [*members[1:], members[0]]
        costs = [self.network.cost(*pair) for pair in zip(members, right, strict=True)]
        self._lanes = Lanes([each[0] for each in costs], [each[1] for each in costs], members)
        self._is_apart = False
        """Whether each rank has a lane."""
        self._marks: list[Mark] = []
        self._outside: list[list[OutsideMessage]] = [[] for _ in members]
        self._received: list[tuple[SendEvent, OutsideMessage]] = []
        """Messages from outside that have arrived since all ranks joined."""
        self._timed = 0
        """Number of these that have been included in the times."""
        self._version = 0
        """Version of the times. A scheduled end of an older version is ignored."""

    def describe(self) -> str:
        return "compute and meet its tensor group"

    def first_arrival_s(self, position: int) -> float:
        part = self.parts[position]
        return max(part.joined_s + part.seconds[0], part.out_free_s) + self._lanes.latency_s[position]

    def begin(self) -> None:
        parts = [self.parts[position] for position in range(len(self.members))]
        now_s = [part.joined_s for part in parts]
        out_s = [max(part.out_free_s, part.joined_s) for part in parts]
        in_s = [max(self.port_of(position).receiver.free_s, now) for position, now in enumerate(now_s)]
        self._steps = self._steps_apart(parts)
        start = Mark(now_s, out_s, in_s, [0] * len(parts))
        if self._are_even(parts) and all(len(set(each)) == 1 for each in start):
            self._all_lanes, self._lanes = self._lanes, self._lanes.together
            self._marks = [start.together]
        else:
            self._is_apart = True
            self._marks = [start]
        self._foretell()

    def _steps_apart(self, parts: Sequence[StagePart[object]]) -> list[Step]:
        passes = iter(zip(*(part.seconds for part in parts), strict=True))
        return [(next(passes) if ring is None else (), ring) for ring in self._plan.steps]

    def _are_even(self, parts: Sequence[StagePart[object]]) -> bool:
        """Return whether the steps are equal on all ranks."""
        first = parts[0].seconds
        alike = all(part.seconds is first or part.seconds == first for part in parts)
        even = all(ring is None or ring.even_bytes is not None for ring in self._plan.steps)
        return alike and even and self._lanes.are_equal

    # Messages from outside

    def is_disturbed_by(self, packet: SendEvent) -> bool:
        position = self.members.index(packet.to)
        if not self._marks:
            return packet.begins_s >= self.first_arrival_s((position - 1) % len(self.members))
        line = self._outside[position]
        # If another message arrived at this time, the order may already be fixed.
        return bool(line and line[-1].delivered_s and line[-1].arrives_s == packet.begins_s)

    def receive(self, packet: SendEvent) -> None:
        if not self._marks:
            self.network.arrive(packet)
            return
        message = OutsideMessage(
            packet.begins_s, packet.start_s, packet.source, packet.carry_s, packet.card_s
        )
        self._outside[self.members.index(packet.to)].append(message)
        if self._timed == len(self._received):  # more messages may arrive at this time: handle them together
            self.kernel.at(self.kernel.now, self._settle, None)
        self._received.append((packet, message))

    def _settle(self, _: None) -> None:
        new, self._timed = self._received[self._timed :], len(self._received)
        for line in self._outside:
            line.sort(key=lambda message: message.order)
        if not self._is_apart and not self._messages_are_alike():
            self._part()
        self._go_back()
        self._foretell()
        for packet, message in new:
            packet.begins_s, packet.delivered_s = message.begins_s, message.delivered_s
            self.kernel.at(message.delivered_s, self.network.ports[packet.to].deliver, packet)

    def _messages_are_alike(self) -> bool:
        first = [message.alike for message in self._outside[0]]
        return all([message.alike for message in line] == first for line in self._outside[1:])

    def past_arrivals(self) -> list[Call]:
        gone = {part.context.rank for part in self.parts.values() if part.recorded is not None}
        waiting = [packet for packet, _ in self._received if packet.to not in gone]
        waiting = self.kernel.withdraw(waiting) + [packet for packet, _ in self._received[self._timed :]]
        calls: list[Call] = []
        for packet, message in self._received:
            if any(packet is each for each in waiting):
                packet.begins_s = message.arrives_s
                calls.append((message.arrives_s, self.network.arrive, packet))
            else:  # it has been delivered
                port = self.network.ports[packet.to]
                calls.append((message.arrives_s, message.enter, port.receiver))
        return calls

    # Times

    def _part(self) -> None:
        """Compute each rank separately from now on."""
        self._is_apart = True
        self._lanes = self._all_lanes
        self._marks = [mark.apart(len(self.members)) for mark in self._marks]

    def _go_back(self) -> None:
        """Return to the last step that has ended by now. Later steps are timed again."""
        last = bisect_right(self._marks, self.kernel.now, key=lambda mark: max(mark.now_s))
        del self._marks[max(1, last) :]

    def _foretell(self) -> None:
        self._version += 1
        if not self._is_apart:
            try:
                self._foretell_together()
                return
            except Diverged:
                self._part()
        self._in_s = follow(self._steps, self._marks, self._lanes, self._outside)
        for position, end_s in enumerate(self._marks[-1].now_s):
            if self.parts[position].recorded is None:
                self.kernel.at(end_s, self._end_one, (self._version, position))

    def _foretell_together(self) -> None:
        steps = [(seconds[:1], ring) for seconds, ring in self._steps]
        self._in_s = follow(steps, self._marks, self._lanes, self._outside[:1]) * len(self.members)
        self.kernel.at(self._marks[-1].now_s[0], self._end_together, self._version)
        for line in self._outside[1:]:
            for message, known in zip(line, self._outside[0], strict=True):
                message.begins_s, message.delivered_s = known.begins_s, known.delivered_s

    # The end

    def _end_together(self, version: int) -> None:
        if version != self._version:
            return
        times_s = [mark.now_s[0] for mark in self._marks]
        first = self.parts[0]
        packed = self._plan.packed(times_s, first.micro, first.step, self._meeting)
        for position in range(len(self.members)):
            self._leave(position, packed, times_s[-1])

    def _end_one(self, which: tuple[int, int]) -> None:
        version, position = which
        if version == self._version:
            self._leave(position, self._spans(position), self._marks[-1].out_free_s[position])

    def _leave(self, position: int, spans: bytes, out_free_s: float) -> None:
        """End a rank's part."""
        self.parts[position].record_end(spans, self._plan.sent_bytes[position], self._plan.messages)
        self.end(position, out_free_s, self._in_s[position])

    def _spans(self, position: int) -> bytes:
        """Return a rank's spans. A ring has a wait for the last rank, and a receive."""
        part, spans = self.parts[position], []
        step, kind, meeting = part.context.step, self._plan.kind, self._meeting
        for ring, before, after in zip(self._plan.steps, self._marks, self._marks[1:], strict=False):
            start_s, end_s = before.now_s[position], after.now_s[position]
            if ring is None:
                spans.append(pack_span(kind, start_s, end_s, part.micro, 0, step, NO_MESSAGE))
                continue
            last_s = max(before.now_s)
            if start_s < last_s:
                peer = self.members[before.now_s.index(last_s)]
                spans.append(pack_span(Kind.WAIT, start_s, min(last_s, end_s), peer, 0, step, meeting))
            begin_s, nbytes = min(max(start_s, last_s), end_s), ring.received_bytes[position]
            spans.append(pack_span(Kind.RECEIVE, begin_s, end_s, -1, nbytes, step, meeting))
            meeting -= 1
        return b"".join(spans)
