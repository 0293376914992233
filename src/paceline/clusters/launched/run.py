"""A run of processes that were launched together: they meet at PyTorch's store, where the first one's hub is named.

What goes through the store is public: addresses, public keys, versions. Only without encryption does the run's token go
that way too, which is why that is for a trusted network.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import itertools
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from paceline.clusters.hosts.hub import Hub
from paceline.clusters.hosts.rank import Assignment, RankProcess
from paceline.clusters.hosts.table import (
    Member,
    Table,
    check_versions,
    read_whereabouts,
    whereabouts,
)
from paceline.clusters.job import Consult, Job
from paceline.clusters.keeping import Keeping
from paceline.clusters.launched.launchers import LaunchedProcess
from paceline.clusters.outcome import Outcome
from paceline.clusters.process.letters import read_error, read_outcomes
from paceline.errors import ConfigurationError, DeadlineError, PeerLost
from paceline.links.chunks import RUN_ID_BYTES
from paceline.links.seats import Seat
from paceline.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.launched.launched import Launched

__all__ = ["LaunchedRun"]

_LOOPBACK = "127.0.0.1"
_SO_ATTACH_FILTER = 26
_BPF_INSTRUCTION = struct.Struct("HBBI")
_BPF_RETURN = 0x06  # how many bytes of a packet to let through
_numbers = itertools.count()  # every process makes its runs in the same order


class LaunchedRun:
    """One process's part in a run."""

    def __init__(self, cluster: Launched, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._place = place = cluster.place
        if job.ranks != place.ranks:
            remedy = "launch as many, or choose a strategy that needs as many"
            raise ConfigurationError(
                "processes", f"must be {job.ranks} for this strategy", place.ranks, remedy
            )
        self._meeting = _Meeting(place, next(_numbers), cluster.deadline_s)

    def work(
        self, progress: Callable[[Progress], None] | None, consult: Consult | None = None
    ) -> list[Outcome]:
        """Take part to the end. Every process returns the same outcomes, or raises the same error."""
        rank, meeting = self._place.rank, self._meeting
        where = meeting.exchange("where", {**_values(whereabouts()), "address": _own_address(self._place)})
        meeting.close_door()
        places = [read_whereabouts({k: v for k, v in each.items() if k != "address"}) for each in where]
        check_versions(places, places[0].versions)
        spans_hosts = len({place.host for place in places}) > 1
        encrypt = spans_hosts if self._cluster.encrypt is None else self._cluster.encrypt
        run = meeting.first_says("run", lambda: _new_run(encrypt=encrypt))
        if self._job.keeping is not None:
            self._keep_together(self._job.keeping)
        bind = where[rank]["address"] if spans_hosts else _LOOPBACK
        process = RankProcess(rank, **run, encrypt=encrypt, bind=bind, ports=self._cluster.ports)
        hub = self._open_hub(run["token"], encrypt, bind) if rank == 0 else None
        seat = meeting.first_says("hub", lambda: _values(hub.seat) if hub else {})
        members = [
            Member.from_values(each) for each in meeting.exchange("member", process.member.to_values())
        ]
        table = Table(**run, encrypt=encrypt, hub=Seat(**seat), members=members)
        middle = _Middle(hub, table, progress, consult) if hub is not None else None
        return self._take_part(process, middle, table)

    def _keep_together(self, keeping: Keeping) -> None:
        """All write into one attempt, and go on from the same checkpoint: the first rank's."""
        job, store = self._job, keeping.store
        if self._place.rank == 0:
            store.begin(job.legs.first)
        own = {"attempt": store.attempt, "first": job.legs.first, "resumed": str(keeping.resumed or "")}
        said = self._meeting.first_says("keeping", lambda: own)
        keeping = dataclasses.replace(
            keeping,
            store=dataclasses.replace(store, attempt=said["attempt"]),
            resumed=Path(said["resumed"]) if said["resumed"] else None,
        )
        legs = dataclasses.replace(job.legs, first=said["first"])
        self._job = dataclasses.replace(job, keeping=keeping, legs=legs)

    def _open_hub(self, token: bytes, encrypt: bool, bind: str) -> Hub:
        cluster = self._cluster
        return Hub(
            self._job,
            bind=bind,
            encrypt=encrypt,
            token=token,
            deadline_s=cluster.deadline_s,
            ports=cluster.ports,
        )

    def _take_part(self, process: RankProcess, middle: _Middle | None, table: Table) -> list[Outcome]:
        cluster = self._cluster
        assignment = Assignment(
            job=self._job,
            stragglers=cluster.stragglers,
            deadline_s=cluster.deadline_s,
            threads=cluster.threads,
            device=cluster.device,
        )
        try:
            parting = process.work(assignment, table)
        finally:
            if middle is not None:
                middle.end()
                if self._job.keeping is not None:
                    self._job.keeping.store.end()
        if parting is None:
            raise PeerLost(0, "the run's hub is in its process", "nothing more was heard from it")
        if "error" in parting.values:
            raise read_error(parting.values["error"])
        return read_outcomes(parting.values, parting.blobs)


class _Middle:
    """The hub of the run, in a thread of the first rank's process. Its ranks hear from it all there is to know."""

    def __init__(
        self,
        hub: Hub,
        table: Table,
        progress: Callable[[Progress], None] | None,
        consult: Consult | None,
    ) -> None:
        self._hub = hub
        called = (table, progress, consult)
        self._thread = threading.Thread(target=self._work, args=called, name="hub", daemon=True)
        self._thread.start()

    def _work(
        self, table: Table, progress: Callable[[Progress], None] | None, consult: Consult | None
    ) -> None:
        try:
            self._hub.work(table, self, progress, consult, share=True)
        except Exception as error:
            self._hub.give_up(error)  # this process's own rank hears of it like all others
        finally:
            self._hub.close()

    def losses(self) -> Iterable[tuple[int, str]]:
        return ()  # a launcher tells nothing; who is silent for long is lost

    def end(self) -> None:
        self._hub.stop()
        self._thread.join()


class _Meeting:
    """PyTorch's store, as a place where processes tell each other values."""

    def __init__(self, place: LaunchedProcess, number: int, deadline_s: float) -> None:
        self._place = place
        self._deadline_s = max(deadline_s, 60.0)
        self._prefix = f"paceline/{number}"
        self._store = _store(place, self._deadline_s)

    def close_door(self) -> None:
        """Now that everybody is there, let nobody else in. Each process keeps its connection, for later runs too."""
        listener = _listeners.pop((self._place.address, self._place.port), None)
        if listener is not None:
            _deafen(listener)
            listener.close()

    def first_says(self, word: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A value of the first rank's."""
        if self._place.rank == 0:
            self._say(word, 0, make())
        return self._hear(word, 0)

    def exchange(self, word: str, own: dict[str, Any]) -> list[dict[str, Any]]:
        """A value of each rank's."""
        self._say(word, self._place.rank, own)
        return [self._hear(word, rank) for rank in range(self._place.ranks)]

    def _say(self, word: str, rank: int, values: dict[str, Any]) -> None:
        self._store.set(f"{self._prefix}/{word}/{rank}", msgpack.packb(values))

    def _hear(self, word: str, rank: int) -> dict[str, Any]:
        key = f"{self._prefix}/{word}/{rank}"
        try:
            self._store.wait([key], timedelta(seconds=self._deadline_s))
            values: dict[str, Any] = msgpack.unpackb(self._store.get(key))
        except RuntimeError:  # torch.distributed's errors are of this kind
            raise DeadlineError(
                self._place.rank, "meeting the others", f"rank {rank}", self._deadline_s
            ) from None
        return values


_stores: dict[tuple[str, int], Any] = {}
_listeners: dict[tuple[str, int], socket.socket] = {}
"""Where this process serves the store, and others are still to come."""


def _store(place: LaunchedProcess, deadline_s: float) -> Any:
    """One for all runs of a process: a port can be bound once."""
    key = (place.address, place.port)
    if key not in _stores:
        _stores[key] = _open_store(place, deadline_s)
    return _stores[key]


def _open_store(place: LaunchedProcess, deadline_s: float) -> Any:
    dist: Any = importlib.import_module("torch.distributed")
    serves = place.rank == 0 and not place.store_is_there
    options: dict[str, Any] = {}
    if serves:
        # By itself the store would listen at all interfaces of the host.
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
            "MASTER_ADDR", "must be where the processes can meet", where, remedy
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
    """Let the system drop new connections from now on. The socket is the store's, which would fail if it were closed.

    The store keeps whatever it is told, by anybody.
    """
    drop_all = ctypes.create_string_buffer(_BPF_INSTRUCTION.pack(_BPF_RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    with contextlib.suppress(OSError):  # a system that forbids filters leaves the door as it was
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _own_address(place: LaunchedProcess) -> str:
    """This host's address on the way to where the processes meet."""
    try:
        family, _, _, _, target = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_DGRAM)[0]
    except OSError:
        remedy = "set MASTER_ADDR to a name that every host knows, or to a number"
        raise ConfigurationError("MASTER_ADDR", "must resolve", place.address, remedy) from None
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing, but chooses an interface
        address: str = probe.getsockname()[0]
    return address


def _new_run(*, encrypt: bool) -> dict[str, Any]:
    return {"run_id": secrets.token_bytes(RUN_ID_BYTES), "token": b"" if encrypt else secrets.token_bytes(16)}


def _values(thing: Any) -> dict[str, Any]:
    return asdict(thing)
