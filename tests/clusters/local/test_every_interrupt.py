"""Ctrl-C at each safe point of a driver: the hand-over between driver, fork server and ranks."""

import contextlib
import itertools
import signal

import pytest
from processes import workers
from tasks import a_task

import paceline as pl
from paceline.system import interrupts


@pytest.fixture
def interrupt_at(monkeypatch):
    """Send the driver SIGINT at its n-th safe point."""
    safe_point, points = interrupts.safe_point, itertools.count(1)
    state = {"at": 0}

    def interrupted_safe_point():
        if next(points) == state["at"]:
            signal.raise_signal(signal.SIGINT)
        safe_point()

    @contextlib.contextmanager
    def interrupted(at):
        nonlocal points
        points, state["at"] = itertools.count(1), at
        yield
        state["at"] = 0

    monkeypatch.setattr(interrupts, "safe_point", interrupted_safe_point)
    return interrupted


@pytest.mark.slow
def test_a_driver_that_is_interrupted_at_any_safe_point_trains_the_next_time(interrupt_at, file_descriptors):
    cluster = pl.Local(workers=1)
    pl.train(a_task(), "single", cluster, steps=1)
    were_open = file_descriptors()
    for at in itertools.count(1):
        try:
            with interrupt_at(at):
                pl.train(a_task(), "single", cluster, steps=1)
        except KeyboardInterrupt:
            pass
        else:
            break  # it has fewer safe points than that
        assert workers() == []
        assert pl.train(a_task(), "single", cluster, steps=1).steps == 1
        assert file_descriptors() == were_open
    assert at > 6
