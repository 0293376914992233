"""Control passes between a computation and its caller, and no thread is left behind."""

import _thread
import contextlib
import contextvars
import threading
import time

import pytest

from paceline.errors import Cancelled
from paceline.system.baton import Baton

SETTING = contextvars.ContextVar("setting", default="none")


def parking(values, log=None):
    """A computation that parks with each value."""

    def work():
        for value in values:
            if log is not None:
                log.append(f"computes {value}")
            baton.park(value)

    baton = Baton(work, "test")
    return baton


def is_over():
    return not [thread for thread in threading.enumerate() if thread.name == "test"]


def test_the_two_alternate():
    log = []
    baton = parking([1, 2], log)
    while (value := baton.resume()) is not None:
        log.append(f"handles {value}")
    baton.close()
    assert log == ["computes 1", "handles 1", "computes 2", "handles 2"]
    assert is_over()


def test_nothing_runs_before_the_first_resume():
    log = []
    parking([1], log).close()
    assert not log
    assert is_over()


def test_an_error_of_the_computation_is_raised_where_it_is_resumed():
    def work():
        raise ValueError("on purpose")

    baton = Baton(work, "test")
    with pytest.raises(ValueError, match="purpose"):
        baton.resume()
    baton.close()
    assert is_over()


def test_closing_raises_cancelled_where_the_computation_is_parked():
    ends = []

    def work():
        try:
            baton.park(1)
        finally:
            ends.append(True)

    baton = Baton(work, "test")
    baton.resume()
    baton.close()
    assert ends == [True]
    assert is_over()


def test_a_computation_that_catches_everything_is_cancelled_again():
    def work():
        for value in range(3):
            with contextlib.suppress(Cancelled):
                baton.park(value)

    baton = Baton(work, "test")
    baton.resume()
    baton.close()
    assert is_over()


def test_a_computation_may_park_in_another_of_its_threads():
    def work():
        other = threading.Thread(target=baton.park, args=("there",))  # as the threads of autograd's devices
        other.start()
        other.join()

    baton = Baton(work, "test")
    assert baton.resume() == "there"
    assert baton.resume() is None
    baton.close()
    assert is_over()


def test_context_variables_are_those_of_the_caller():
    seen = []
    SETTING.set("mine")
    baton = Baton(lambda: seen.append(SETTING.get()), "test")
    baton.resume()
    baton.close()
    assert seen == ["mine"]


def test_the_processor_time_is_that_of_the_computation():
    def work():
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass
        baton.park(1)

    baton = Baton(work, "test")
    baton.resume()
    assert baton.processor_s >= 0.02
    baton.close()


def test_an_interrupt_of_the_waiting_caller_leaves_no_thread():
    """The caller waits in `resume` when the signal arrives. `close` waits for the computation's next hook."""

    def work():
        _thread.interrupt_main()
        interrupted.wait()
        baton.park(1)

    interrupted = threading.Event()
    baton = Baton(work, "test")
    with pytest.raises(KeyboardInterrupt):
        baton.resume()
    interrupted.set()
    baton.close()
    assert is_over()
