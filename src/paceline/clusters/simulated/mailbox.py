"""Mailbox of a simulated rank: messages that have arrived and are not yet received.

This code runs for every message, so there are few helper functions: a function call costs as much as its work.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.messages import RecvEvent, SendEvent
from paceline.context import ANY


class Mailbox:
    """Messages that a rank has not received yet, and receives that wait for a message."""

    __slots__ = ("_alone", "_by_source", "_by_tag", "_kernel", "_single", "_unreceived", "_waiting")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._unreceived = 0
        # Most unreceived packets are the only one of their tag. Such a packet is stored here.
        self._single: dict[int, SendEvent] = {}
        # Both store all other packets, in order of arrival: by tag, and by source and tag.
        self._by_tag: dict[int, OrderedDict[SendEvent, None]] = {}
        self._by_source: dict[tuple[int, int], deque[SendEvent]] = {}
        # Several waiters are rare, so a single waiter is stored here and not in the queues.
        self._alone: RecvEvent | None = None
        self._waiting: dict[tuple[int, int], deque[RecvEvent]] = {}

    def deliver(self, packet: SendEvent) -> None:
        # Another message that arrived at the same time is delivered first.
        if packet.delivered_s > self._kernel.now:
            self._kernel.at(packet.delivered_s, self.deliver, packet)
            return
        event = self._alone
        if (
            event is not None
            and event.tag == packet.tag
            and (event.source == packet.source or event.source == ANY)
        ):
            self._alone = None
            event.receive(packet)
        elif self._waiting and (event := self._next_waiting(packet.source, packet.tag)):
            event.receive(packet)
        else:
            self._keep(packet)

    def ask(self, event: RecvEvent) -> None:
        """Give the event its message, or queue it until one arrives."""
        event.began_s = self._kernel.now
        packet = self._take(event.source, event.tag) if self._unreceived else None
        if packet is not None:
            event.receive(packet)
        elif self._alone is None and not self._waiting:
            self._alone = event
        else:
            if self._alone is not None:
                self._line_up(self._alone)
                self._alone = None
            self._line_up(event)

    def forget(self, event: RecvEvent) -> None:
        """Remove a receive, if it still waits. An error may have ended the run while it was given its message."""
        if event is self._alone:
            self._alone = None
            return
        queue = self._waiting.get((event.source, event.tag))
        if queue is not None and event in queue:
            self._leave(queue, event)

    def _line_up(self, event: RecvEvent) -> None:
        self._waiting.setdefault((event.source, event.tag), deque()).append(event)

    def _leave(self, queue: deque[RecvEvent], event: RecvEvent) -> None:
        queue.remove(event)
        if not queue:
            del self._waiting[event.source, event.tag]

    def _next_waiting(self, source: int, tag: int) -> RecvEvent | None:
        """Return the next waiting receive. A receive from this source has priority over a receive from ANY."""
        queue = self._waiting.get((source, tag)) or self._waiting.get((ANY, tag))
        if queue is None:
            return None
        event = queue[0]
        self._leave(queue, event)
        return event

    def _keep(self, packet: SendEvent) -> None:
        self._unreceived += 1
        tag = packet.tag
        if tag not in self._by_tag:
            other = self._single.setdefault(tag, packet)
            if other is packet:
                return
            del self._single[tag]
            self._queue(other)
        self._queue(packet)

    def _queue(self, packet: SendEvent) -> None:
        self._by_tag.setdefault(packet.tag, OrderedDict())[packet] = None
        self._by_source.setdefault((packet.source, packet.tag), deque()).append(packet)

    def _take(self, source: int, tag: int) -> SendEvent | None:
        """Remove and return the packet that arrived first, of all sources or of one."""
        packet = self._single.get(tag)
        if packet is None:
            packet = self._take_queued(source, tag) if tag in self._by_tag else None
        elif source in (ANY, packet.source):
            del self._single[tag]
        else:
            packet = None
        if packet is not None:
            self._unreceived -= 1
        return packet

    def _take_queued(self, source: int, tag: int) -> SendEvent | None:
        packets = self._by_tag[tag]
        if source == ANY:
            source = next(iter(packets)).source
        queue = self._by_source.get((source, tag))
        if queue is None:
            return None
        packet = queue.popleft()  # the first message of all sources is also the first of its own source
        del packets[packet]
        if not queue:
            del self._by_source[source, tag]
        if not packets:
            del self._by_tag[tag]
        return packet
