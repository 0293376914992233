"""The tests of the shutdown of networks and processes. `make test-long` repeats them under load.

They are listed here, not marked in their files, so that one place shows all of them.
"""

import re

import pytest

PLACES = {
    "tests/clusters/hosts/test_hub": "",
    "tests/clusters/launched/test_launched.py": "stop_the_run",
    "tests/clusters/local/test_tcp.py": "killed|stops|interrupt|go_on_without|gone",
    "tests/clusters/process/test_offspring.py": "",
    "tests/clusters/test_failures.py": "interrupt|ctrl_c|killed|stops|leave",
    "tests/system/test_stopping.py": "ctrl_c|processes",
    "tests/links/tcp/test_acceptor.py": "",
    "tests/links/tcp/test_endpoint.py": "clos|same_time",
    "tests/links/tcp/test_hostile.py": "flood|without_end",
    "tests/system/test_interrupts.py": "interrupt_before|callback_of_the_driver",
}
"""Pairs of the beginning of a test file's path and a pattern in the test's name."""


def is_of_shutdown(nodeid):
    file, _, name = nodeid.partition("::")
    return any(file.startswith(place) and re.search(words, name) for place, words in PLACES.items())


def add_option(parser):
    parser.addoption("--times", type=int, default=1, help="run each test of shutdown this often")


def mark_shutdown_tests(items):
    for item in items:
        if is_of_shutdown(item.nodeid):
            item.add_marker(pytest.mark.shutdown)


def repeat_shutdown_test(metafunc):
    """Run a shutdown test `--times` times: once for each value of a parameter."""
    times = metafunc.config.getoption("times")
    if times > 1 and is_of_shutdown(metafunc.definition.nodeid):
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(1, times + 1))
