"""Ctrl-C is recorded from the first line of a run to its return, and delivered at safe points: it is never lost."""

import contextlib
import gc
import signal
import sys
import threading
import weakref

import pytest
import torch
from processes import workers
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.system.interrupts import protected, recorded, safe_point, unprotected


def interrupt():
    signal.raise_signal(signal.SIGINT)


def interrupted(block):
    """Whether a function raises KeyboardInterrupt."""
    try:
        block()
    except KeyboardInterrupt:
        return True
    return False


@contextlib.contextmanager
def handler(function):
    before = signal.signal(signal.SIGINT, function)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# Where an exception would be lost


class InGarbageCollection:
    """Sends SIGINT from a callback of the garbage collector, which ignores exceptions."""

    def __call__(self):
        def callback(phase, info):
            gc.callbacks.remove(callback)
            interrupt()

        gc.callbacks.append(callback)
        gc.collect()


class InWeakrefCallback:
    def __call__(self):
        class Thing:
            pass

        thing = Thing()
        reference = weakref.ref(thing, lambda _: interrupt())
        del thing
        assert reference() is None


class InDel:
    def __call__(self):
        class Thing:
            def __del__(self):
                interrupt()

        Thing()


MOMENTS = [InGarbageCollection(), InWeakrefCallback(), InDel()]
IDS = [type(moment).__name__ for moment in MOMENTS]
CLUSTERS = [pl.Local(workers=2), simulated(2)]


def linear():
    return nn.Linear(3, 1)


def model_after(moment):
    """A model factory in which SIGINT arrives: it is called before the run begins."""

    def build():
        moment()
        return linear()

    return build


def short_task(**changes):
    data = (torch.ones(8, 3), torch.ones(8, 1))
    words = {"model": linear, "data": data, "loss": nn.functional.mse_loss, "batch_size": 4}
    return pl.Task(**words | {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1)} | changes)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["local", "simulated"])
@pytest.mark.parametrize("moment", MOMENTS, ids=IDS)
def test_an_interrupt_before_the_run_begins_is_not_lost_where_exceptions_are_ignored(moment, cluster):
    with pytest.raises(KeyboardInterrupt):
        pl.train(short_task(model=model_after(moment)), "all-reduce", cluster, steps=2)
    assert workers() == []


@pytest.mark.parametrize("moment", MOMENTS, ids=IDS)
def test_an_interrupt_in_a_callback_of_the_driver_is_not_lost_either(moment):
    def progress(_):
        moment()

    with pytest.raises(KeyboardInterrupt):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=10**6, progress=progress)
    assert workers() == []


@pytest.mark.parametrize("moment", MOMENTS, ids=IDS)
def test_a_comparison_is_interrupted_too(moment):
    with pytest.raises(KeyboardInterrupt):
        pl.compare(short_task(model=model_after(moment)), ["sync"], simulated(2), steps=2)


@pytest.mark.parametrize("moment", MOMENTS, ids=IDS)
def test_an_interrupt_of_a_comparison_before_its_first_run_is_not_lost(moment):
    calls, built = [], []

    def data():
        if not calls:  # the comparison itself builds the data once, to count the updates of an epoch
            moment()
        calls.append(len(calls))
        return torch.ones(8, 3), torch.ones(8, 1)

    def model():
        built.append(len(built))
        return linear()

    with pytest.raises(KeyboardInterrupt):
        pl.compare(short_task(model=model, data=data), ["sync"], simulated(2), epochs=1)
    assert built == []


def test_a_simulated_program_is_interrupted_between_two_events():
    async def program(ctx):
        MOMENTS[0]()
        for _ in range(10):
            await ctx.sleep(1.0)
        reached.append(ctx.rank)

    reached = []
    with pytest.raises(KeyboardInterrupt):
        pl.run_program(program, simulated(1))
    assert reached == []


def test_a_simulated_run_of_one_worker_is_interrupted_though_it_never_waits_for_another():
    steps = []

    def metric(outputs, targets):
        if not steps:
            InDel()()
        steps.append(len(steps))
        return 0.0

    task = short_task(test=(torch.ones(4, 3), torch.ones(4, 1)), metric=metric)
    with pytest.raises(KeyboardInterrupt):
        pl.train(task, "single", simulated(1), steps=50, evaluate_every=1)
    assert len(steps) < 50


def test_a_second_interrupt_is_delivered_at_once_in_user_code():
    reached = []

    def build():
        interrupt()
        reached.append("after the first")
        interrupt()
        reached.append("after the second")
        return linear()

    with pytest.raises(KeyboardInterrupt):
        pl.train(short_task(model=build), "single", simulated(1), steps=2)
    assert reached == ["after the first"]


def test_the_handler_of_the_user_is_called_and_is_back_after_the_run():
    calls = []

    def count(signum, frame):
        calls.append(signum)

    with handler(count):
        run = pl.train(short_task(model=model_after(interrupt)), "single", simulated(1), steps=2)
        assert signal.getsignal(signal.SIGINT) is count
    assert run.steps == 2
    assert calls == [signal.SIGINT]


# The blocks


def test_an_interrupt_waits_for_the_end_of_the_block():
    done = []

    def block():
        with recorded():
            interrupt()
            done.append("all")

    assert interrupted(block)
    assert done == ["all"]


def test_an_interrupt_is_delivered_at_the_next_safe_point():
    done = []

    def block():
        with recorded():
            safe_point()
            done.append("before")
            interrupt()
            safe_point()
            done.append("after")

    assert interrupted(block)
    assert done == ["before"]


def test_protected_code_is_not_interrupted_however_often_the_signal_is_sent():
    done = []

    def block():
        with protected():
            for _ in range(3):
                interrupt()
            done.append("protected")
            with unprotected():
                done.append("unprotected")

    assert interrupted(block)
    assert done == ["protected"]


def test_unprotected_code_is_interrupted_by_the_second_signal():
    done = []

    def block():
        with protected(), unprotected():
            interrupt()
            done.append("once")
            interrupt()
            done.append("twice")

    assert interrupted(block)
    assert done == ["once"]


def test_a_second_interrupt_does_not_break_off_the_cleaning_up_after_the_first():
    cleaned = []

    def block():
        with protected():
            try:
                interrupt()
                safe_point()
            finally:
                interrupt()
                cleaned.append("all")

    with pytest.raises(KeyboardInterrupt) as caught:
        block()
    assert cleaned == ["all"]
    assert caught.value.__context__ is None, "two interrupts raise once"


def test_an_interrupt_that_was_delivered_at_once_but_ignored_is_delivered_again(monkeypatch):
    def block():
        with recorded():
            interrupt()
            MOMENTS[0]()  # the second signal raises where exceptions are ignored
            safe_point()
            pytest.fail("the interrupt was lost")

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ignored.append(what.exc_type))
    assert interrupted(block)
    assert ignored == [KeyboardInterrupt]


def test_a_handler_that_does_not_raise_is_called_each_time():
    calls = []
    with handler(lambda *_: calls.append("called")), recorded():
        interrupt()
        interrupt()
    assert calls == ["called", "called"]


@pytest.mark.parametrize("happens", [interrupt, sys.exit], ids=["interrupt", "exit"])
def test_the_users_handler_is_back_after_the_block(happens):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises((KeyboardInterrupt, SystemExit)), recorded():
        happens()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_user_code_installs_stays():
    def own(signum, frame):
        pass

    with handler(signal.default_int_handler):
        with recorded():
            signal.signal(signal.SIGINT, own)
        assert signal.getsignal(signal.SIGINT) is own


def test_a_nested_block_delivers_what_was_recorded_before_it():
    done = []

    def block():
        with recorded():
            interrupt()
            with protected():
                done.append("inside")

    assert interrupted(block)
    assert done == []


def test_a_process_that_ignores_the_signal_goes_on_ignoring_it():
    with handler(signal.SIG_IGN), recorded():
        interrupt()
        safe_point()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_leave_the_handler_alone():
    seen = []

    def run():
        with protected(), unprotected():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
