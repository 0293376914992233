"""Ctrl-C at each point at which a driver hears it: the hand-over between driver, fork server and ranks."""

import contextlib
import itertools
import signal

import pytest
from processes import workers
from tasks import a_task

import paceline as pl
from paceline.clusters.local import interrupts


@pytest.fixture
def interrupt_at(monkeypatch):
    """Have the driver interrupted where it comes to its n-th wait."""
    deliver, waits = interrupts._Keeper.deliver, itertools.count(1)
    state = {"at": 0}

    def deliver_or_interrupt(keeper):
        if keeper.is_hearing and next(waits) == state["at"]:
            signal.raise_signal(signal.SIGINT)
        deliver(keeper)

    @contextlib.contextmanager
    def interrupted(at):
        nonlocal waits
        waits, state["at"] = itertools.count(1), at
        yield
        state["at"] = 0

    monkeypatch.setattr(interrupts._Keeper, "deliver", deliver_or_interrupt)
    return interrupted


@pytest.mark.slow
def test_a_driver_that_is_interrupted_at_any_of_its_waits_trains_the_next_time(
    interrupt_at, file_descriptors
):
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
            break  # it has fewer waits than that
        assert workers() == []
        assert pl.train(a_task(), "single", cluster, steps=1).steps == 1
        assert file_descriptors() == were_open
    assert at > 6
