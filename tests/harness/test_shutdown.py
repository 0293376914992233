"""`make test-long` finds the tests of shutdown and repeats them under load."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE_S, wait_until

from harness import shutdown, under_load, watchdog

ROOT = Path(__file__).parents[2]

CONFTEST = """
from harness import shutdown

def pytest_addoption(parser):
    shutdown.add_option(parser)

def pytest_configure(config):
    config.addinivalue_line("markers", "shutdown: marked")

def pytest_generate_tests(metafunc):
    shutdown.repeat_shutdown_test(metafunc)

def pytest_collection_modifyitems(items):
    shutdown.mark_shutdown_tests(items)
"""


@pytest.mark.parametrize("place", shutdown.PLACES)
def test_each_place_has_tests_of_shutdown(place):
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob(f"{place}*")]
    found = [
        f"{file}::{name}"
        for file in files
        for name in re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert any(map(shutdown.is_of_shutdown, found)), "its tests have other names now"


def test_tests_of_shutdown_are_repeated_and_others_are_left_out(tmp_path):
    here = tmp_path / "tests" / "links" / "tcp"
    here.mkdir(parents=True)
    (here / "test_acceptor.py").write_text("def test_closing(): pass\n")
    (here / "test_way.py").write_text("def test_sending(): pass\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-p", "no:cacheprovider", "-m", "shutdown", "--times", "3"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert re.search(r"\b3 passed, 1 deselected\b", ended.stdout), ended.stdout


def test_make_test_long_repeats_them_under_load():
    rule = re.search(r"^test-long:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule
    for words in ("tests/harness/under_load.py", "shutdown and not slow", "--times $(TIMES)"):
        assert words in rule[1]


def busy_loops(parent):
    return [pid for pid in watchdog.descendants(parent) if "getppid" in watchdog.words_of(pid)]


@pytest.mark.parametrize("ending", ["the command ends", "it is terminated"])
def test_a_command_under_load_has_a_busy_loop_for_each_core_and_leaves_none(ending):
    command = [sys.executable, "-SE", "-c", "import sys; sys.stdin.read(); sys.exit(3)"]
    process = subprocess.Popen([sys.executable, under_load.__file__, *command], stdin=subprocess.PIPE)
    try:
        count = under_load.LOOPS_PER_CORE * os.cpu_count()
        wait_until(lambda: len(busy_loops(process.pid)) == count, "the loops are busy")
        loops = busy_loops(process.pid)
        if ending == "it is terminated":
            process.send_signal(signal.SIGTERM)
        process.stdin.close()
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert code == (3 if ending == "the command ends" else 128 + signal.SIGTERM)
    wait_until(lambda: not any(map(watchdog.is_running, loops)), "no loop is left")


def test_a_busy_loop_that_starts_after_its_owner_has_ended_ends_too():
    owner = subprocess.Popen([sys.executable, "-SE", "-c", ""])
    owner.wait(PATIENCE_S)
    loop = under_load.start_loop(owner.pid)
    try:
        assert loop.wait(PATIENCE_S / 4) == 0
    finally:
        loop.kill()
        loop.wait()
