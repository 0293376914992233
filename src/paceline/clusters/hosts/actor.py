"""Actor that runs in each process that Ray or Spark starts: a thin wrapper around a rank.

Its code is pickled by value, so that a host without paceline can report that paceline is missing. Nothing of paceline
is imported before that check.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.clusters.base.job import Job
    from paceline.clusters.hosts.rank import Assignment, RankProcess
    from paceline.clusters.hosts.table import Member, Table, Whereabouts

_PACKAGES = ("torch", "paceline")


class RankActor:
    """Process of a rank."""

    def __init__(self) -> None:
        self._process: RankProcess | None = None
        self._assignment: Assignment | None = None
        self._shared: Any = None

    def versions(self) -> tuple[str, int, dict[str, str | None]]:
        """Return the host name, the process id, and the installed versions. None for a package that is not
        installed."""
        found: dict[str, str | None] = {"python": platform.python_version()}
        for package in _PACKAGES:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found[package] = "unknown" if importlib.util.find_spec(package) else None
        return socket.gethostname(), os.getpid(), found

    def settle(self) -> Whereabouts:
        """Import the slow modules, above all torch. Return the location of this process."""
        # Otherwise torch would import its compiler in the run's first step, when an optimizer is built.
        import torch._dynamo  # noqa: F401

        from paceline.clusters.hosts import rank, table  # noqa: F401

        return table.whereabouts()

    def look(self, path: Sequence[str], folder: str, modules: Mapping[str, tuple[str, str]]) -> list[str]:
        """Use the driver's folder, and the entries of its path that exist here.

        `modules` maps each of the driver's modules to its relative file path and its hash. Return the modules that
        differ here.
        """
        sys.path[:0] = [entry for entry in path if os.path.exists(entry) and entry not in sys.path]
        if os.path.isdir(folder):
            os.chdir(folder)
        return [name for name, found in modules.items() if not _has(*found)]

    def keep(self, payload: Any) -> tuple[str, int]:
        """Store the payload in memory that all ranks of this host can map. Return its path and size."""
        from paceline.links.memory.shared import SharedMemory

        self._shared = SharedMemory.create("payload", len(payload))
        self._shared.view[:] = memoryview(payload)
        return f"/proc/{os.getpid()}/fd/{self._shared.fd}", len(payload)

    def join(self, rank: int, payload_path: str, payload_bytes: int, **place: Any) -> Member | dict[str, Any]:
        """Join the run. Return the member, or the values of an error message if the user's code fails."""
        from paceline.clusters.hosts.rank import RankProcess
        from paceline.clusters.process import payload
        from paceline.clusters.process.letters import write_error

        fd = os.open(payload_path, os.O_RDWR)
        try:
            self._assignment = payload.load(fd, payload_bytes)
            self._process = RankProcess(rank, **place)
        except Exception as error:
            return write_error(rank, 0, error)
        finally:
            os.close(fd)
        return self._process.member

    @property
    def job(self) -> Job | None:
        """Job of the run that this process has joined; None if it has not joined one."""
        return None if self._assignment is None else self._assignment.job

    def work(self, table: Table) -> None:
        """Run the rank to its end. Its results are sent to the run's hub."""
        process, assignment = self._process, self._assignment
        assert process is not None
        assert assignment is not None
        self._process = self._assignment = self._shared = None
        process.work(assignment, table)


def _has(place: str, digest: str) -> bool:
    """Return whether importing the module at this relative path would give the same code here."""
    for entry in sys.path:
        file = os.path.join(entry, place)
        if os.path.isfile(file):
            with open(file, "rb") as opened:
                return hashlib.sha256(opened.read()).hexdigest() == digest
    return False
