"""Channels between the driver and the workers of a local run."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.clusters.process.channel import Channel, ChannelClosed, Letter
from paceline.system import interrupts


class Mail:
    """One channel to each rank. Their file descriptors are closed by `close`."""

    def __init__(self, letter_s: float) -> None:
        """`letter_s` is the timeout for the rest of a letter that a rank has partly written or read."""
        self._letter_s = letter_s
        self._channels: dict[int, Channel] = {}
        self._selector = selectors.DefaultSelector()

    @property
    def ranks(self) -> Sequence[int]:
        return list(self._channels)

    def open(self, rank: int) -> socket.socket:
        """Open the channel to a rank. Return the socket for its process. The caller closes it."""
        if rank in self._channels:  # of a lost process
            self.drop(rank)
            self._channels.pop(rank).close()
        ours, theirs = socket.socketpair()
        self._channels[rank] = Channel(ours, self._letter_s)
        self._selector.register(self._channels[rank], selectors.EVENT_READ, rank)
        return theirs

    def send(self, rank: int, word: str, values: dict[str, Any] | None, fds: Sequence[int]) -> None:
        with interrupts.unprotected():
            self._channels[rank].send(word, values, fds=fds)

    def receive(self, timeout_s: float) -> Iterator[tuple[int, Letter | ChannelClosed]]:
        """Yield the letters that have arrived, and each channel that was closed. Wait for the first one."""
        for key, _ in self._selector.select(timeout_s):
            rank: int = key.data
            if (
                self._channels[rank] is not key.fileobj
            ):  # replaced while the letters before this one were handled
                continue
            try:
                with interrupts.unprotected():
                    letter = self._channels[rank].receive()
            except ChannelClosed as closed:
                yield rank, closed
            else:
                yield rank, letter

    def drop(self, rank: int) -> None:
        """Ignore a rank from now on."""
        with contextlib.suppress(KeyError):  # dropped before, when a letter could not be sent
            self._selector.unregister(self._channels[rank])

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._selector.close()
