import signal
import sys
import threading

import pytest

from paceline.clusters.local.interrupts import interrupts_heard, interrupts_kept


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_kept_until_the_end_of_the_block():
    done = []

    def block():
        with interrupts_kept():
            interrupt()
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["all"]


def test_an_interrupt_is_heard_at_once_where_the_driver_waits():
    done = []

    def block():
        with interrupts_kept(), interrupts_heard():
            interrupt()
            done.append("too late")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == []


def test_a_kept_interrupt_is_heard_at_the_next_wait():
    done = []

    def block():
        with interrupts_kept():
            interrupt()
            done.append("before")
            with interrupts_heard():
                done.append("waiting")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["before"]


def test_a_second_interrupt_does_not_break_off_the_cleaning_up_after_the_first():
    cleaned = []

    def block():
        with interrupts_kept():
            try:
                with interrupts_heard():
                    interrupt()
            finally:
                interrupt()
                cleaned.append("all")

    with pytest.raises(KeyboardInterrupt) as caught:
        block()
    assert cleaned == ["all"]
    assert caught.value.__context__ is None, "two interrupts are one answer"


def test_a_handler_that_does_not_raise_is_called_each_time():
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append("called"))
    try:
        with interrupts_kept(), interrupts_heard():
            interrupt()
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == ["called", "called"]


@pytest.mark.parametrize("happens", [interrupt, sys.exit], ids=["interrupt", "exit"])
def test_the_users_handler_is_back_after_the_block(happens):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises((KeyboardInterrupt, SystemExit)), interrupts_kept():
        happens()
    assert signal.getsignal(signal.SIGINT) is before


def test_blocks_may_stand_inside_a_heard_one():
    done = []

    def block():
        with interrupts_kept(), interrupts_heard(), interrupts_kept():
            interrupt()
            done.append("inside")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["inside"]


def test_other_threads_leave_the_handler_alone():
    seen = []

    def run():
        with interrupts_kept(), interrupts_heard():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
