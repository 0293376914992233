"""Signs of life of the ranks, as the hub receives them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator


class Presence:
    """Times of the last data that the hub has received from each rank, and the data that each rank has received."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._heard_s: dict[int, float] = {}
        self.connected: set[int] = set()
        """Ranks that have sent a heartbeat. A message to any other rank would be dropped."""
        self._leaving_s: dict[int, float] = {}
        """For each rank that has sent its end: when a part of that message last arrived."""
        self._gone: set[int] = set()
        """Ranks that have received the hub's last message."""
        self._received: dict[int, tuple[int, float]] = {}
        """For each rank: bytes of a message that it has received, and since when this number is unchanged."""

    def note_message(self, rank: int, *, asks: bool) -> None:
        """Record that something arrived.

        With `asks` it arrived over the request connection, which also carries the final message of a rank.
        """
        self._heard_s[rank] = now_s = time.monotonic()
        if asks and rank in self._leaving_s:
            self._leaving_s[rank] = now_s

    def note_beat(self, rank: int, *, leaves: bool, received_bytes: int) -> None:
        """Record a heartbeat. With `leaves` the rank has begun to send its end."""
        self.connected.add(rank)
        now_s = time.monotonic()
        if leaves:
            self._leaving_s.setdefault(rank, now_s)
        if self._received.get(rank, (-1, now_s))[0] != received_bytes:
            self._received[rank] = (received_bytes, now_s)

    def note_gone(self, rank: int) -> None:
        """Record that a rank has received the hub's last message."""
        self._gone.add(rank)

    def silent_s(self, rank: int) -> float:
        """Return the seconds since the last sign of life. Infinite if there was none."""
        return time.monotonic() - self._heard_s.get(rank, -math.inf)

    def still_here(self, silent_s: float) -> list[int]:
        """Return the ranks that have not received the hub's last message, and are not silent for `silent_s`."""
        return [rank for rank in self.connected - self._gone if self.silent_s(rank) < silent_s]

    def received_s(self, rank: int) -> float:
        """Return the time at which a rank last made progress in receiving a message."""
        return self._received[rank][1]

    def lost(self, silent_s: float) -> Iterator[tuple[int, str]]:
        """Yield the ranks that have been silent for too long, with a reason for each."""
        for rank in self._heard_s:
            if self.silent_s(rank) > silent_s:
                yield rank, f"no sign of life for {silent_s:g} s"
        for rank, came_s in self._leaving_s.items():
            if time.monotonic() - came_s > self._deadline_s:
                yield rank, f"how it ended did not arrive within {self._deadline_s:g} s"
