"""A test that hangs or crashes fails, the stacks of its processes are printed, and the other tests run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE_S

from harness import limits, watchdog
from harness.scheduling import pytest_xdist_make_scheduler

TESTS = Path(__file__).parents[1]

CONFTEST = """
from harness import limits
from harness.scheduling import pytest_xdist_make_scheduler

def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(seconds): limit")
    limits.register(config)
"""

PASSING = """
import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("GROUP")
def test_passes(number):
    pass
"""

HANGING = """
import ctypes, subprocess, sys, threading

def waits_for_ever():
    threading.Event().wait()

def test_hangs_in_python():
    waits_for_ever()

def holds_the_lock_in_c():
    ctypes.PyDLL(None).pause()

def test_hangs_in_c():
    holds_the_lock_in_c()

CHILD = '''
import time
def sleeps_in_a_child():
    time.sleep(10**6)
sleeps_in_a_child()
'''

def test_hangs_with_a_child():
    subprocess.run([sys.executable, "-c", CHILD], stderr=subprocess.PIPE)
"""

CRASHING = """
import os, pytest

@pytest.mark.xdist_group("crashes")
def test_passes_before():
    pass

@pytest.mark.xdist_group("crashes")
def test_exits():
    os._exit(0)

@pytest.mark.xdist_group("crashes")
def test_passes_after():
    pass

def test_is_killed():
    os.kill(os.getpid(), 9)
"""

CRASHING_TOGETHER = """
import os, pathlib, pytest, time

@pytest.mark.parametrize("number", range(6))
def test_crashes_with_another(number):
    here = pathlib.Path(__file__).parent
    (here / f"ready-{number}").touch()
    until_s = time.monotonic() + 5
    while len(list(here.glob("ready-*"))) % 3 and time.monotonic() < until_s:
        time.sleep(0.001)
    os._exit(0)
"""


@pytest.fixture
def run_tests(tmp_path):
    """Run test files in a separate pytest. Return its exit code and output."""

    def run(files, *options, limit_s=60):
        for name, text in {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\n", **files}.items():
            (tmp_path / name).write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "PACELINE_TEST_TIMEOUT": str(limit_s)}
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=10 * PATIENCE_S,  # the limits within it are extended on a busy machine
            check=False,
        )
        return ended.returncode, ended.stdout

    return run


def failed_in(output):
    return set(re.findall(r"^FAILED \S+::(\w+)", output, re.MULTILINE))


def passing(*groups):
    return {f"test_{group}.py": PASSING.replace("GROUP", group) for group in groups}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_test_that_hangs_fails_with_the_stacks_of_its_processes_and_the_others_run(run_tests):
    files = {"test_hanging.py": HANGING, **passing("a", "b")}
    # Long enough for a child to start on a busy machine, so that its stack shows the sleep.
    code, output = run_tests(files, "-n2", "--dist=loadgroup", limit_s=20)
    assert code == 1, output
    assert failed_in(output) == {"test_hangs_in_python", "test_hangs_in_c", "test_hangs_with_a_child"}
    assert re.search(r"\b3 failed, 12 passed\b", output), output
    for function in ("waits_for_ever", "holds_the_lock_in_c", "sleeps_in_a_child"):
        assert re.search(rf"line \d+ in {function}\b", output), f"{function} is not in {output}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, 3])
def test_a_run_ends_with_a_failure_after_a_test_process_has_crashed(run_tests, processes):
    files = {"test_crashing.py": CRASHING, **passing("a", "b", "c")}
    code, output = run_tests(files, f"-n{processes}", "--dist=loadgroup")
    assert code == 1, output
    assert failed_in(output) == {"test_exits", "test_is_killed"}
    assert re.search(r"\b2 failed, 20 passed\b", output), output


@pytest.mark.timeout(300)
def test_a_run_ends_with_a_failure_if_test_processes_crash_together(run_tests):
    files = {"test_together.py": CRASHING_TOGETHER, **passing("a", "b")}
    code, output = run_tests(files, "-n3", "--dist=loadgroup")
    assert code == 1, output
    assert re.search(r"\b6 failed, 12 passed\b", output), output


@pytest.mark.timeout(300)
def test_a_marked_test_has_the_limit_of_its_mark(run_tests):
    marked = "import pytest, time\n@pytest.mark.timeout(0.1)\ndef test_marked():\n    time.sleep(10**6)\n"
    code, output = run_tests({"test_marked.py": marked})
    assert code not in (0, 1), "without pytest-xdist the only test process ends"
    assert "test_marked.py::test_marked (call) did not end within 0.1 s" in output


@pytest.mark.parametrize(("runnable", "pace"), [(1, 1.0), (3, 1.0), (6, 0.5), (12, 0.25), (10**6, 0.1)])
def test_a_test_has_more_time_on_a_machine_that_is_overloaded(runnable, pace):
    assert watchdog.pace(runnable, cores=2) == pace


def test_these_tests_have_limits_and_a_scheduling_that_survives_crashes(request):
    plugins = request.config.pluginmanager
    assert plugins.has_plugin("time-limits") or request.config.getoption("usepdb")
    schedulers = [getattr(each, "pytest_xdist_make_scheduler", None) for each in plugins.get_plugins()]
    assert pytest_xdist_make_scheduler in schedulers


def test_the_limit_of_a_test_is_a_minute_unless_it_is_marked(request):
    assert limits.limit_of(request.node) == limits.DEFAULT_S == 60.0


UNRAISABLE = """
class Thing:
    def __del__(self):
        raise KeyboardInterrupt

def test_loses_an_exception():
    Thing()
"""


def test_a_test_in_which_python_ignores_an_exception_fails(run_tests, pytestconfig):
    filters = "\n    ".join(pytestconfig.getini("filterwarnings"))
    files = {"test_unraisable.py": UNRAISABLE, "pytest.ini": f"[pytest]\nfilterwarnings =\n    {filters}\n"}
    code, output = run_tests(files)
    assert code == 1, output
    assert failed_in(output) == {"test_loses_an_exception"}
