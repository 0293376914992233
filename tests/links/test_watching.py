import os
import time

import pytest

from paceline.links.watching import Watch


@pytest.fixture
def pipes():
    made = [os.pipe() for _ in range(3)]
    yield made
    for pair in made:
        for fd in pair:
            os.close(fd)


def test_it_tells_which_files_can_be_read(pipes):
    watch = Watch([out for out, _ in pipes])
    os.write(pipes[1][1], b"x")
    assert watch.wait(1e6) == [False, True, False]
    os.read(pipes[1][0], 1)
    assert watch.wait(0.0) == [False, False, False]


@pytest.mark.parametrize("timeout_s", [0.0, 1e-5, 0.01])
def test_it_returns_when_the_time_is_over_and_no_sooner(pipes, timeout_s):
    began_s = time.monotonic()
    assert Watch([pipes[0][0]]).wait(timeout_s) == [False]
    assert time.monotonic() - began_s >= timeout_s


def test_what_can_be_read_before_the_wait_ends_it(pipes):
    os.write(pipes[0][1], b"x")
    for _ in range(2):  # and again, until it is read
        assert Watch([pipes[0][0]]).wait(1e6) == [True]
