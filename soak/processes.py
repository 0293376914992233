"""Processes of this machine, read from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process. Process ids are reused, but id and start time together are unique."""

    pid: int
    parent: int
    state: str
    start: int

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def find(pid: int) -> Process | None:
    """Return the process; None if it does not exist."""
    text = read(pid, "stat")
    if not text:
        return None
    fields = text.rpartition(")")[2].split()  # a name may have spaces in it
    return Process(pid, int(fields[1]), fields[0], int(fields[19]))


def descendants(pid: int) -> list[Process]:
    """Return all descendants of a process, including zombies."""
    children: dict[int, list[Process]] = {}
    for process in _all():
        children.setdefault(process.parent, []).append(process)
    found, places = [], [pid]
    while places:
        below = children.get(places.pop(), [])
        found += below
        places += [process.pid for process in below]
    return found


def fork_servers(pid: int) -> list[Process]:
    """Return Paceline's fork servers among the children of a process."""
    own = [process for process in _all() if process.parent == pid]
    return [process for process in own if "forkserver" in read(process.pid, "cmdline")]


def ranks_of(pid: int) -> list[Process]:
    """Return the ranks of a process's local run. Its fork server forks them in order."""
    servers = {process.pid for process in fork_servers(pid)}
    ranks = [process for process in _all() if process.parent in servers]
    return sorted(ranks, key=lambda process: (process.start, process.pid))


def marked(mark: str) -> list[Process]:
    """Return the living processes with this mark in their environment, with any current parent."""
    return [process for process in _all() if process.is_alive and mark in read(process.pid, "environ")]


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal. Without one the signal would end it."""
    for line in read(pid, "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def read(pid: int, name: str) -> str:
    """Return a file of a process in /proc; empty if it cannot be read."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _all() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := find(int(name))) is not None:
            yield process
