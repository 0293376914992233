"""Operations of a group of ranks that are timed as a whole instead of message by message.

Ranks form a ring: each sends to its right neighbour only. A rank that joins an operation claims its output port and the
input port of its right neighbour. Nothing happens at these ports until the operation ends there. When all ranks have
joined, all times are computed at once.

The result is exact only if no other message uses a claimed port. If another message is about to use one, the operation
falls back: it is repeated message by message from the times at which its ranks joined until now, in isolation, and then
continues message by message. Up to now no other message has used these ports, so the repetition is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from paceline.clusters.simulated.messages import SendEvent

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext
    from paceline.clusters.simulated.group_part import GroupPart
    from paceline.clusters.simulated.network import Ports

Call: TypeAlias = tuple[float, Callable[[Any], None], Any]
"""Time, function and argument."""


class GroupOperation:
    """The parts of all ranks."""

    gives_way: ClassVar[bool] = False
    """Whether this operation falls back if an operation that cannot fall back needs its ports."""

    def __init__(self, context: SimulatedContext, members: Sequence[int]) -> None:
        self.members = members
        self.parts: dict[int, Any] = {}
        """Parts that have joined, by position."""
        self.kernel, self.network = context.kernel, context.network
        self.number = self._last_number = context.kernel.next_number()
        """Sequence number of the first part. Lower for older operations."""
        self.is_singly = not self.network.can_isolate(members)
        """Whether it runs message by message."""
        self._ended = 0
        if not self.is_singly:
            self.network.operations.add(self)

    def describe(self) -> str:
        raise NotImplementedError

    def first_arrival_s(self, position: int) -> float:
        """Return when the first message of the part at `position` would arrive at its right neighbour, at the
        earliest."""
        raise NotImplementedError

    def begin(self) -> None:
        """Compute all times. All ranks have joined."""
        raise NotImplementedError

    def is_disturbed_by(self, packet: SendEvent) -> bool:
        """Return whether the operation falls back because of a message that arrives now at a claimed input port."""
        raise NotImplementedError

    def receive(self, packet: SendEvent) -> None:
        """Handle a message that arrives now at a claimed input port and does not disturb the operation."""
        self.network.arrive(packet)

    def restore(self) -> None:
        """Undo the results of a timing. The operation is about to be repeated message by message."""

    def forget(self) -> None:
        """Free what is needed only to undo the results. All parts have ended."""

    def past_arrivals(self) -> list[Call]:
        """Return calls that repeat the arrival of messages from outside at the ports of the operation."""
        return []

    # Ports

    def port_of(self, position: int) -> Ports:
        return self.network.ports[self.members[position % len(self.members)]]

    def join(self, position: int, part: GroupPart[Any]) -> None:
        own, right = self.port_of(position), self.port_of(position + 1)
        if not self.gives_way:
            _make_way(own, right)
        self.parts[position] = part
        part.number = self.kernel.next_number()
        part.out_free_s = own.sender.free_s
        if self.is_singly:
            part.run_singly()
        elif self._collides(position, own, right):
            self.fall_back()
        else:
            self._claim(part, own, right)
            if len(self.parts) == len(self.members):
                self.begin()

    def _collides(self, position: int, own: Ports, right: Ports) -> bool:
        """Return whether other messages may use the ports that a part needs."""
        if own.claim is not None:
            return True
        if right.claims:
            # Messages of one sender arrive in the order of their calls. Messages of other senders may arrive in
            # between.
            to = self.members[(position + 1) % len(self.members)]
            if any(each.left_of(to) != self.members[position] for each in right.claims):
                return True
        return right.instant_s >= self.kernel.now and right.instant_s >= self.first_arrival_s(position)

    def left_of(self, rank: int) -> int:
        return self.members[self.members.index(rank) - 1]

    def _claim(self, part: GroupPart[Any], own: Ports, right: Ports) -> None:
        part.has_claimed = True
        self._last_number = part.number
        own.sender.free_s = math.inf  # so that every message is noticed without a check for each message
        own.claim = self
        right.claims.append(self)
        right.coming += 1

    def end(self, position: int, out_free_s: float, in_free_s: float) -> None:
        """End a rank's part: release its ports, in their state after the operation."""
        part, port = self.parts[position], self.port_of(position)
        part.before = port.state(part.out_free_s)
        port.claim = None
        port.sender.free_s, port.receiver.free_s = out_free_s, in_free_s
        self._unclaim(port)
        self._ended += 1
        if self._ended == len(self.members):
            self.network.operations.discard(self)
            self.forget()
        self.kernel.finish(part)

    def _unclaim(self, port: Ports) -> None:
        port.claims.remove(self)
        port.coming -= 1

    # Falling back

    def fall_back(self) -> None:
        """Continue message by message."""
        if self.is_singly:
            return
        operations = sorted(self._connected(), key=lambda each: each.number)
        for each in operations:
            each.is_singly = True
            each.network.operations.discard(each)
            each.kernel.withdraw_methods(each)
            each._release()
        for each in operations:
            each._repeat()
        parts = [part for each in operations for part in each.parts.values()]
        for part in sorted(parts, key=lambda part: part.number):
            part.run_singly()

    def _connected(self) -> set[GroupOperation]:
        """Return this operation and all operations that claim the same ports, directly or through others."""
        found, new = set[GroupOperation](), {self}
        while new:
            found |= new
            ports = [self.network.ports[rank] for each in new for rank in each.members]
            claims = {claim for port in ports for claim in (port.claim, *port.claims)}
            new = {each for each in claims if each is not None} - found
        return found

    def _release(self) -> None:
        for position, part in self.parts.items():
            own, right = self.port_of(position), self.port_of(position + 1)
            if own.claim is self:
                own.claim = None
                own.sender.free_s = part.out_free_s
            if self in right.claims:
                self._unclaim(right)

    def _repeat(self) -> None:
        """Repeat the operation until now. Parts that have ended use copies of their ports."""
        ports = self.network.ports
        ended = {position: part for position, part in self.parts.items() if part.recorded is not None}
        self.restore()
        actual = {rank: ports[rank] for rank in (self.members[position] for position in ended)}
        for position, part in ended.items():
            rank = self.members[position]
            ports[rank] = ports[rank].copy(part.before)
            part.remove_records()
        recorded = {position: len(part.context.recorder.packed) for position, part in ended.items()}
        # The part that caused the collision also needs ports of other operations. It is run after the replay.
        repeated = [part for part in self.parts.values() if part.has_claimed]
        calls: list[Call] = [(part.joined_s, part.run_singly, None) for part in repeated]

        def has_ended() -> bool:
            return all(part.process is not None and part.process.done for part in ended.values())

        self.kernel.replay(calls + self.past_arrivals(), self._last_number, has_ended)
        for rank, port in actual.items():
            ports[rank] = port
        for position, place in recorded.items():
            ended[position].move_records(place)


def _make_way(own: Ports, right: Ports) -> None:
    for each in (own.claim, *right.claims):
        if each is not None and each.gives_way:
            each.fall_back()
