"""A process beside a test process: it ends a test that hangs, after it has shown the stacks of all processes.

It is a separate process, because a test may hang in C code that holds the interpreter's lock. Then no Python code runs
in the test process, neither in a thread nor in a signal handler. faulthandler needs no lock: it writes the stacks when
SIGABRT ends a process. pytest enables it in test processes, PYTHONFAULTHANDLER in the processes that they start.

Run as a script with the number of the test process and a descriptor. It reads lines from there: "begin 60 name", "end".
"""

import contextlib
import os
import select
import signal
import stat
import sys
import time
from pathlib import Path

TICK_S = 0.5
LOAD = 1.5  # runnable threads per core: above it, tests get proportionally more time
SLOWEST = 0.1  # no test gets more than ten times its limit
DEATH_S = 5.0


def pace(runnable: int, cores: int) -> float:
    """Seconds of a test's limit that pass in one second, on a machine with `runnable` threads."""
    return min(1.0, max(SLOWEST, LOAD * cores / max(runnable, 1)))


def count_runnable() -> int:
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])


class Watchdog:
    """Counts the time of the test that runs. A tick counts once, even if this process wakes up late."""

    def __init__(self, pid, fd):
        self._pid = pid
        self._fd = fd
        self._name = ""
        self._left_s = 0.0
        self._limit_s = 0.0

    def run(self):
        rest = b""
        while True:
            if select.select([self._fd], [], [], TICK_S)[0]:
                data = os.read(self._fd, 65536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(line.decode(errors="replace"))
            elif self._name:
                self._tick()
            if not is_running(self._pid):
                return

    def _take(self, line):
        word, _, words = line.partition(" ")
        self._name = ""
        if word == "begin":
            limit, _, self._name = words.partition(" ")
            self._left_s = self._limit_s = float(limit)

    def _tick(self):
        self._left_s -= TICK_S * pace(count_runnable(), os.cpu_count() or 1)
        if self._left_s < 0:
            say(
                f"\n===== {self._name} did not end within {self._limit_s:g} s. Stacks of its processes: ====="
            )
            end_tree(self._pid)
            self._name = ""


def end_tree(root):
    """Stop a process and its descendants, then let each of them write its stacks and die, descendants first."""
    pids = [*descendants(root), root]
    for pid in pids:
        send(pid, signal.SIGSTOP)
    # Stop processes first. Otherwise a process that reads its child's stderr would consume the stacks.
    wait_until(lambda: not any(is_running(pid) and not is_stopped(pid) for pid in pids), DEATH_S)
    for pid in pids:
        say(f"--- process {pid}: {words_of(pid)}")
        say(stacks(pid, shows_itself=pid == root))


def stacks(pid, *, shows_itself):
    """End a process.

    Return the text that it wrote to its stderr at the end. `shows_itself`: its stderr is the terminal's.
    """
    fd = None if shows_itself else tap(pid)
    try:
        send(pid, signal.SIGABRT)
        send(pid, signal.SIGCONT)
        if not wait_until(lambda: not is_running(pid), DEATH_S):
            send(pid, signal.SIGKILL)
        return drain(fd)
    finally:
        if fd is not None:
            os.close(fd)


def tap(pid):
    """Open the stderr of a process for reading. None if it is neither a pipe nor a file."""
    with contextlib.suppress(OSError):
        path = f"/proc/{pid}/fd/2"
        mode = os.stat(path).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISREG(mode):
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            if stat.S_ISREG(mode):
                os.lseek(fd, 0, os.SEEK_END)
            return fd
    return None


def drain(fd):
    parts = []
    with contextlib.suppress(OSError):  # a pipe with nothing to read
        while fd is not None and (data := os.read(fd, 65536)):
            parts.append(data)
    return b"".join(parts).decode(errors="replace")


def descendants(root):
    """The deepest come first: some die with their parent."""
    parents = {pid: fields[1] for pid in numbers() if (fields := stat_fields(pid))}
    found = [root]
    for parent in found:
        found += [pid for pid, its_parent in parents.items() if its_parent == str(parent)]
    return [pid for pid in reversed(found[1:]) if pid != os.getpid()]


def numbers():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat_fields(pid):
    """Return the fields of /proc/PID/stat from the state on. Empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid):
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def is_stopped(pid):
    return stat_fields(pid)[:1] in (["T"], ["t"])


def words_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "gone"


def send(pid, signum):
    with contextlib.suppress(OSError):
        os.kill(pid, signum)


def wait_until(holds, timeout_s):
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def say(text):
    if text.strip():
        os.write(2, text.encode() + b"\n")


def main():
    pid, fd = int(sys.argv[1]), int(sys.argv[2])
    if os.fork():  # so that it is not a child of the test process, because tests count children
        os._exit(0)
    os.setsid()  # Ctrl-C in the terminal ends the tests, and this process after them
    Watchdog(pid, fd).run()


if __name__ == "__main__":
    main()
