"""The processes of this machine, from /proc."""

import os
import select
import time
from pathlib import Path

PATIENCE_S = 120.0
"""Seconds after which a test treats an operation as hanging, even on a busy machine. Nothing is measured with it."""


def is_alive(pid):
    return _field(pid, "State").startswith(tuple("RSDTt"))


def children(pid):
    """The child processes of `pid`, including zombies."""
    return [other for other in _all() if _field(other, "PPid") == str(pid)]


def fork_servers():
    """The fork servers of this process."""
    return [pid for pid in children(os.getpid()) if b"forkserver" in _read(pid, "cmdline")]


def workers():
    """The worker processes of this process's fork servers, zombies included."""
    return [worker for server in fork_servers() for worker in children(server)]


def marked(mark):
    """The living processes with this mark in their initial environment."""
    return [pid for pid in _all() if mark.encode() in _read(pid, "environ") and is_alive(pid)]


def opened(pid):
    """The names of the files that a process has open or mapped."""
    names = {line.split(None, 5)[-1] for line in _read(pid, "maps").decode().splitlines()}
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            names.add(os.readlink(link))
        except OSError:
            continue
    return names


def wait_until(holds, what):
    """Poll until a condition is true. Fail with the message `what` if it never is."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, f"waited {PATIENCE_S:g} s until {what}"
        time.sleep(0.005)


def has_signs(file, timeout_s):
    """Whether a file can be read within a time. `select` does not support descriptors above 1,023."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def _all():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _field(pid, name):
    for line in _read(pid, "status").decode().splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":", 1)[1].strip()
    return ""
