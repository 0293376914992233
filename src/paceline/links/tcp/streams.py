"""Bytes over one connection without blocking, plain or encrypted."""

from __future__ import annotations

import socket as sockets
import ssl

_RECORD_BYTES = 2**14  # maximum size of a TLS record


class PlainStream:
    """A TCP connection. After an error it neither sends nor receives."""

    __slots__ = ("_socket", "is_broken", "is_readable", "is_writable")

    def __init__(self, socket: sockets.socket) -> None:
        socket.setblocking(False)
        socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        self._socket = socket
        self.is_broken = False
        self.is_readable = True
        """False after a read has found no data. The watcher of the connection sets it to True."""
        self.is_writable = True
        """False after a write has found no room. The watcher of the connection sets it to True."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, header: memoryview, payload: memoryview) -> int:
        """Send as much as possible of the header, then of the payload. Return the number of bytes sent."""
        try:
            return self._send(header, payload)
        except BlockingIOError:
            self.is_writable = False
        except OSError:
            self._break()
        return 0

    def read_into(self, place: memoryview) -> int:
        """Receive the available bytes. Return their number; 0 if there are none."""
        try:
            if count := self._receive(place):
                return count
            self._break()
        except BlockingIOError:
            self.is_readable = False
        except OSError:
            self._break()
        return 0

    def close(self) -> None:
        self._socket.close()
        self._break()

    def _send(self, header: memoryview, payload: memoryview) -> int:
        return self._socket.sendmsg((header, payload)) if header else self._socket.send(payload)

    def _receive(self, place: memoryview) -> int:
        return self._socket.recv_into(place)

    def _break(self) -> None:
        self.is_broken = True
        self.is_readable = self.is_writable = False


class TlsStream(PlainStream):
    """An encrypted TCP connection. Only one thread at a time may use it."""

    __slots__ = ("_first",)

    def __init__(self, socket: ssl.SSLSocket) -> None:
        super().__init__(socket)
        self._first: bytes | None = None

    def _send(self, header: memoryview, payload: memoryview) -> int:
        if self._first is None and header:
            # Put the header and the start of the payload into one record: `SSLSocket` has no `sendmsg`.
            self._first = b"".join((header, payload[: _RECORD_BYTES - len(header)]))
        try:
            count = self._socket.send(self._first if self._first is not None else payload)
        except ssl.SSLWantWriteError:
            # OpenSSL has encrypted this record already: the next call must send the same bytes again.
            raise BlockingIOError from None
        except ssl.SSLWantReadError:
            return 0
        self._first = None
        return count

    def _receive(self, place: memoryview) -> int:
        """Fill `place` as far as possible, in several calls: one call of `recv_into` returns at most one record."""
        recv_into, size, received = self._socket.recv_into, len(place), 0
        try:
            while received < size and (count := recv_into(place[received:])):
                received += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not received:
                raise BlockingIOError from None
        return received


def open_stream(socket: sockets.socket) -> PlainStream:
    """Return the stream of an authenticated connection."""
    return TlsStream(socket) if isinstance(socket, ssl.SSLSocket) else PlainStream(socket)
