"""The environment of a run: versions, machine and command. Stored with the run, so that it can be reproduced."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def snapshot() -> dict[str, str]:
    """Return the facts by name: paceline, python, torch, numpy, system, processor, cores, command."""
    return {**_machine(), "command": _command()}


@functools.cache
def _machine() -> dict[str, str]:
    return {
        "paceline": _version("paceline"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(_cores()),
    }


def _version(package: str) -> str:
    """Return the version from the package's metadata. Importing torch to read its version would take a second."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _cores() -> int:
    """Return the number of cores that this process may use.

    In a container they may be fewer than the cores of the machine.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def _command() -> str:
    """Return the command as typed, without the paths of the interpreter and of the `paceline` script."""
    words = sys.orig_argv[1:]
    if words and Path(words[0]).name == "paceline":
        return shlex.join(["paceline", *words[1:]])
    return shlex.join(["python", *words])


@functools.cache
def machine() -> dict[str, str]:
    """Return the identity of this machine: processor, cores, memory (in GiB), and versions."""
    facts = _machine()
    total = _memory_line("MemTotal")
    memory = {} if total is None else {"memory": f"{total / 2**30:.1f} GiB"}
    kept = ("processor", "cores", "paceline", "python", "torch")
    return {name: facts[name] for name in kept} | memory


def available_bytes() -> int | None:
    """Return the memory available without swapping, limited by the container's maximum. None if unknown."""
    known = [size for size in (_machine_bytes(), _container_bytes()) if size is not None]
    return min(known, default=None)


def _machine_bytes() -> int | None:
    return _memory_line("MemAvailable")


def _memory_line(name: str) -> int | None:
    """Return the bytes that /proc/meminfo has under a name. None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")]
    return found[0] if found else None


def _container_bytes() -> int | None:
    """Return the container's limit; None if there is none.

    The free part is unknown, because file caches count as used memory.
    """
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if limit == "max" else int(limit)
