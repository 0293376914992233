"""Detects what a run leaves behind: processes, files in /dev/shm and the temporary folder, open descriptors."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from soak.processes import Process, descendants, fork_servers, read

_GRACE_S = 20.0  # Ray's processes and the kernel may take a moment
_SHARED = Path("/dev/shm")


class Leftovers:
    """Compares the state of this process before its first run with the state after each run."""

    def __init__(self, grace_s: float = _GRACE_S) -> None:
        self._grace_s = grace_s
        self._shared = _names(_SHARED)
        self._temporary = _own_temporary()
        self._open: dict[str, int] = {}
        self._clusters: set[str] = set()

    def look(self, cluster: str) -> list[str]:
        """Return what a run on this kind of cluster has left behind. Each item is reported once."""
        gc.collect()  # an error and its frames reference each other
        found = [*self._settled(_processes), *self._settled(self._files), *self._descriptors(cluster)]
        self._shared |= _names(_SHARED)
        self._temporary |= _own_temporary()
        return found

    def _settled(self, look: Callable[[], list[str]]) -> list[str]:
        """Return what `look` still finds after a grace period."""
        until_s = time.monotonic() + self._grace_s
        while (found := look()) and time.monotonic() < until_s:
            time.sleep(0.05)
        return found

    def _files(self) -> list[str]:
        shared = [name for name in _names(_SHARED) - self._shared if not _held_elsewhere(name)]
        temporary = _own_temporary() - self._temporary
        return [f"left in /dev/shm: {name}" for name in sorted(shared)] + [
            f"left in the temporary folder: {name}" for name in sorted(temporary)
        ]

    def _descriptors(self, cluster: str) -> list[str]:
        """Compare descriptors. The first run on a kind of cluster may open some that later runs reuse."""
        before, after = self._open, _descriptors()
        self._open = after
        is_new = cluster not in self._clusters
        self._clusters.add(cluster)
        if cluster == "ray":  # each start of Ray leaves a socket or two open
            before, after = _of_paceline(before), _of_paceline(after)
        if is_new or sum(after.values()) <= sum(before.values()):
            return []
        more = {name: count - before.get(name, 0) for name, count in after.items()}
        shown = ", ".join(f"{count} of {name}" for name, count in sorted(more.items()) if count > 0)
        return [f"descriptors: {sum(before.values())} before, {sum(after.values())} after: {shown}"]


def _processes() -> list[str]:
    """Return all descendants of this process, except its fork server."""
    servers = fork_servers(os.getpid())[-1:]
    left = [process for process in descendants(os.getpid()) if process not in servers]
    return [f"left running: {_shown(process)}" for process in left]


def _shown(process: Process) -> str:
    return f"process {process.pid} ({process.state}) {read(process.pid, 'cmdline')[:80]}"


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.is_dir() else set()


def _own_temporary() -> set[str]:
    """Return Paceline's own files. Torch's compiler cache is in the same folder."""
    return {name for name in _names(Path(tempfile.gettempdir())) if "paceline" in name}


def _held_elsewhere(name: str) -> bool:
    """Return whether another program of this machine uses a file of /dev/shm."""
    own = {os.getpid(), *(process.pid for process in descendants(os.getpid()))}
    others = (int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in own)
    return any(f"/dev/shm/{name}" in read(pid, "maps") for pid in others)


def _descriptors() -> dict[str, int]:
    """Return the number of open descriptors of this process, by kind."""
    counts: dict[str, int] = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]
        except OSError:
            continue  # the folder itself
        counts[name] = counts.get(name, 0) + 1
    return counts


def _of_paceline(descriptors: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in descriptors.items() if name.startswith("/memfd:paceline")}
