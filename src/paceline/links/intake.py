"""How much each connection to a socket has brought that ZeroMQ has not handed over: who brings too much is cut off.

ZeroMQ limits the size of a part, and how many messages wait to be read. But it hands a message over only with its last
part, and does not limit how many parts come before: one that never ends would take all memory. The system knows how
much a connection has brought.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket as sockets
import struct
import termios
from collections.abc import Iterator

__all__ = ["Intake"]

_RECEIVED = struct.Struct(
    "<128xQ"
)  # tcpi_bytes_received, in what Linux tells of a connection (struct tcp_info)
_LONG_BYTES = 255  # the frame of a longer part says its length in eight bytes instead of one
_SEAL_BYTES = 33  # what encryption adds to a part: a word, a nonce, flags and a code


class Intake:
    """The connections to one bound socket. One thread reports them, another takes what they bring."""

    def __init__(self, *, encrypt: bool) -> None:
        self._seal_bytes = _SEAL_BYTES if encrypt else 0
        self._connections: dict[int, _Connection] = {}

    def opened(self, fd: int) -> None:
        # A new object: an older connection with this number may still be read from.
        self._connections[fd] = _Connection()

    def closed(self, fd: int) -> None:
        self._connections.pop(fd, None)

    def took(self, fd: int, part_bytes: int) -> None:
        """A part has been handed over that came by this connection."""
        frame_bytes = part_bytes + self._seal_bytes
        if connection := self._connections.get(fd):
            connection.taken_bytes += frame_bytes + (9 if frame_bytes > _LONG_BYTES else 2)

    def cut_off(self, port: int, most_bytes: int) -> int:
        """End the connections to this port that have brought so much more than was taken; how many there were."""
        cut = 0
        for fd, connection in list(self._connections.items()):
            with _opened(fd, port) as socket:
                if socket is not None and _read_bytes(socket) - connection.taken_bytes > most_bytes:
                    socket.shutdown(sockets.SHUT_RDWR)
                    self.closed(fd)
                    cut += 1
        return cut


class _Connection:
    __slots__ = ("taken_bytes",)

    def __init__(self) -> None:
        self.taken_bytes = 0


@contextlib.contextmanager
def _opened(fd: int, port: int) -> Iterator[sockets.socket | None]:
    """A connection that is ZeroMQ's; None if it has been closed, and its number may be that of another file."""
    try:
        own = os.dup(fd)  # stays the same file, whatever becomes of the number
    except OSError:
        yield None
        return
    try:
        socket = sockets.socket(fileno=own)
    except OSError:
        os.close(own)
        yield None
        return
    with socket, contextlib.suppress(OSError):  # the other side may leave at any time
        is_tcp = socket.family in (sockets.AF_INET, sockets.AF_INET6)
        yield socket if is_tcp and socket.getsockname()[1] == port else None


def _read_bytes(socket: sockets.socket) -> int:
    """What this process has read from a connection: all that came, without what still waits in the system."""
    info = socket.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _RECEIVED.size)
    waiting = fcntl.ioctl(socket, termios.FIONREAD, bytes(4))
    received: int = _RECEIVED.unpack(info)[0]
    return received - int.from_bytes(waiting, "little")
