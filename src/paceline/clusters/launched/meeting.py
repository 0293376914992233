"""Rendezvous of launched processes at PyTorch's store. They exchange their addresses and keys there."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import socket
import struct
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgpack

from paceline.clusters.launched.launchers import LaunchedProcess
from paceline.errors import ConfigurationError, DeadlineError
from paceline.links.tcp.address import address_towards
from paceline.system import interrupts

_SO_ATTACH_FILTER = 26
_BPF_INSTRUCTION = struct.Struct("HBBI")
_BPF_RETURN = 0x06  # instruction that returns the number of bytes of a packet to accept
_POLL_S = (0.002, 0.1)  # interval between two polls of the store, initial and maximum


class Meeting:
    """PyTorch's store, used to exchange values between processes."""

    def __init__(self, place: LaunchedProcess, number: int, deadline_s: float) -> None:
        self._place = place
        self._deadline_s = deadline_s
        self._prefix = f"paceline/{number}"
        self._store = _store(place, self._deadline_s)

    def close_door(self) -> None:
        """Refuse new connections, now that all processes have met. Existing connections serve later runs."""
        listener = _listeners.pop((self._place.address, self._place.port), None)
        if listener is not None:
            _deafen(listener)
            listener.close()

    def from_first(self, word: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a value that the first rank provides."""
        if self._place.rank == 0:
            self._publish(word, 0, make())
        return self._fetch(word, 0)

    def exchange(self, word: str, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the values of all ranks."""
        self._publish(word, self._place.rank, own)
        return [self._fetch(word, rank) for rank in range(self._place.ranks)]

    def _publish(self, word: str, rank: int, values: dict[str, Any]) -> None:
        self._store.set(f"{self._prefix}/{word}/{rank}", msgpack.packb(values))

    def _fetch(self, word: str, rank: int) -> dict[str, Any]:
        key = f"{self._prefix}/{word}/{rank}"
        try:
            if self._is_set(key):
                values: dict[str, Any] = msgpack.unpackb(self._store.get(key))
                return values
        except RuntimeError:  # errors of torch.distributed have this type
            pass
        raise DeadlineError(self._place.rank, "meeting the others", f"rank {rank}", self._deadline_s)

    def _is_set(self, key: str) -> bool:
        """Wait until a value is set, or until the deadline. The store's own wait ignores signals."""
        until_s, pause_s = time.monotonic() + self._deadline_s, _POLL_S[0]
        while not self._store.check([key]):
            interrupts.safe_point()
            if time.monotonic() > until_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])
        return True


_stores: dict[tuple[str, int], Any] = {}
_listeners: dict[tuple[str, int], socket.socket] = {}
"""Listening sockets of stores that this process serves, while others may still connect."""


def _store(place: LaunchedProcess, deadline_s: float) -> Any:
    """Return the store. It is shared by all runs of a process, because a port can be bound only once."""
    key = (place.address, place.port)
    if key not in _stores:
        _stores[key] = _open_store(place, deadline_s)
    return _stores[key]


def _open_store(place: LaunchedProcess, deadline_s: float) -> Any:
    dist: Any = importlib.import_module("torch.distributed")
    serves = place.rank == 0 and not place.store_is_there
    options: dict[str, Any] = {}
    if serves:
        # By default the store would listen on all interfaces of the host.
        listener = _listeners[place.address, place.port] = _listen(place)
        options = {"master_listen_fd": listener.dup().detach(), "use_libuv": True}
    try:
        return dist.TCPStore(
            place.address,
            place.port,
            place.ranks,
            serves,
            timedelta(seconds=deadline_s),
            wait_for_workers=False,
            **options,
        )
    except RuntimeError as error:
        where = f"{place.address}:{place.port}"
        remedy = f"is the first process running, and is MASTER_ADDR:MASTER_PORT its address? ({error})"
        raise ConfigurationError(
            "MASTER_ADDR", "must be an address that all processes can reach", where, remedy
        ) from None


def _listen(place: LaunchedProcess) -> socket.socket:
    try:
        listener = socket.create_server((place.address, place.port), backlog=place.ranks)
    except OSError as error:
        where = f"{place.address}:{place.port} ({error.strerror})"
        remedy = "set MASTER_PORT to a free port, the same for all processes"
        raise ConfigurationError(
            "MASTER_ADDR:MASTER_PORT", "must be free on the first process's host", where, remedy
        ) from None
    return listener


def _deafen(listener: socket.socket) -> None:
    """Drop new connections from now on. The socket cannot be closed, because the store owns it and would fail.

    The store accepts values from any process that can connect.
    """
    drop_all = ctypes.create_string_buffer(_BPF_INSTRUCTION.pack(_BPF_RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    with contextlib.suppress(OSError):  # a system that forbids filters leaves the socket open
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def own_address(place: LaunchedProcess) -> str:
    """Return this host's address on the route to the rendezvous."""
    try:
        return address_towards(place.address, place.port)
    except OSError:
        remedy = "set MASTER_ADDR to a name that every host can resolve, or to an IP address"
        raise ConfigurationError("MASTER_ADDR", "must resolve", place.address, remedy) from None
