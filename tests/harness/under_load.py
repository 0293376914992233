"""Run a command while every core is busy: `python tests/harness/under_load.py command …`. Exits with its code."""

import os
import signal
import subprocess
import sys

LOOPS_PER_CORE = 1
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**6))\n"


def main():
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # so that nothing is left running
    count = LOOPS_PER_CORE * (os.cpu_count() or 1)
    loops = [subprocess.Popen([sys.executable, "-SE", "-c", BUSY]) for _ in range(count)]
    try:
        return subprocess.call(sys.argv[1:])  # kills the command if a signal ends this wait
    finally:
        for loop in loops:
            loop.send_signal(signal.SIGKILL)
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
