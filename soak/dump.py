"""Dump of the state of hanging processes, before they are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from soak.processes import catches, read

STACKS = "soak-stacks"
"""Name of the memory file to which a process writes its stacks on SIGUSR2."""

_FILES = ("cmdline", "status", "wchan", "syscall", "stack")
_WRITING_S = 1.0


def dump(pids: Sequence[int], folder: Path) -> None:
    """Write a file for each process: /proc data, Python stacks, and the output of py-spy if it is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    for pid in pids:
        parts = [f"== {name}\n{read(pid, name)}\n" for name in _FILES]
        (folder / f"{pid}.txt").write_text("\n".join(parts), encoding="utf-8")
    _ask_all(pids, signal.SIGUSR2)
    for pid in pids:
        with open(folder / f"{pid}.txt", "a", encoding="utf-8") as out:
            out.write(f"\n== stacks\n{_stacks(pid)}\n== py-spy\n{_py_spy(pid)}\n")
    if "PACELINE_DUMP" in os.environ:
        _ask_all(pids, signal.SIGUSR1)


def _ask_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to the processes that have a handler for it. It would end the others."""
    for pid in pids:
        if catches(pid, number):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    time.sleep(_WRITING_S)


def _stacks(pid: int) -> str:
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            if STACKS in os.readlink(link):
                return link.read_text(encoding="utf-8", errors="replace")
    return "(none)"


def _py_spy(pid: int) -> str:
    program = Path(sys.executable).with_name("py-spy")
    if not program.exists() and shutil.which("py-spy") is None:
        return "(not installed)"
    command = [str(program) if program.exists() else "py-spy", "dump", "--nonblocking", "--pid", str(pid)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except subprocess.TimeoutExpired:
        return "(no answer)"
