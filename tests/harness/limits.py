"""A time limit for the setup, the call and the teardown of each test: 60 s, and 300 s if it is marked slow.

`@pytest.mark.timeout(seconds)` sets another. On an overloaded machine the time passes more slowly: see `watchdog.py`.
"""

import contextlib
import os
import resource
import subprocess
import sys

import pytest

from harness import watchdog

DEFAULT_S = 60.0
SLOW_S = 300.0
VARIABLE = "PACELINE_TEST_TIMEOUT"
"""Environment variable: the limit of a test without a mark, in seconds. All other limits change in proportion."""


class TimeLimits:
    """A plugin of pytest, for a process that runs tests."""

    def __init__(self):
        os.environ.setdefault("PYTHONFAULTHANDLER", "1")
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        self._scale = float(os.environ.get(VARIABLE, DEFAULT_S)) / DEFAULT_S
        self._owner = os.getpid()
        reads, self._fd = os.pipe()
        words = [sys.executable, "-SE", watchdog.__file__, str(self._owner), str(reads)]
        subprocess.run(words, pass_fds=[reads], check=True, timeout=60)
        os.close(reads)

    @contextlib.contextmanager
    def _limited(self, item, phase):
        self._write(f"begin {self._scale * limit_of(item):g} {item.nodeid} ({phase})")
        try:
            yield
        finally:
            self._write("end")

    def _write(self, line):
        if os.getpid() == self._owner:  # not for a child process that a test forks
            os.write(self._fd, line.replace("\n", " ").encode() + b"\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        with self._limited(item, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        with self._limited(item, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        with self._limited(item, "teardown"):
            return (yield)


def limit_of(item):
    """Seconds."""
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        return mark.args[0]
    return SLOW_S if item.get_closest_marker("slow") else DEFAULT_S


def register(config):
    """Add the limits, unless this process only distributes the tests, or a debugger is active."""
    # Pytest-xdist: "no" in the processes it starts.
    leaves_tests_to_others = config.getoption("dist", "no") != "no"
    if not leaves_tests_to_others and not config.getoption("usepdb"):
        config.pluginmanager.register(TimeLimits(), "time-limits")
