"""Run a command while every core is busy: `python tests/harness/under_load.py command …`. Exits with its code."""

import contextlib
import os
import signal
import subprocess
import sys

LOOPS_PER_CORE = 1
TICK_S = 0.05
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(10**6))\n"
"""A loop ends with the process named by its argument. It may start after that process has ended."""


def main():
    terminated = []
    # Only record the signal: an exception inside Popen would lose the process that is being started.
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(True))
    loops = [start_loop(os.getpid()) for _ in range(LOOPS_PER_CORE * (os.cpu_count() or 1))]
    command = subprocess.Popen(sys.argv[1:])
    try:
        while command.poll() is None and not terminated:
            pause(command)
        return 128 + signal.SIGTERM if terminated else command.returncode
    finally:
        for process in [command, *loops]:
            process.kill()
            process.wait()


def start_loop(owner):
    return subprocess.Popen([sys.executable, "-SE", "-c", BUSY, str(owner)])


def pause(command):
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(TICK_S)


if __name__ == "__main__":
    sys.exit(main())
