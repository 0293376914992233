import random

import pytest
from links.explorer import every_order, random_orders

from paceline.links import clock
from paceline.links.clock import StoppableClock


class Host:
    """A host's clock that advances by a nanosecond at each reading."""

    def __init__(self, now_ns=1000):
        self.now_ns = now_ns

    def monotonic_ns(self):
        self.now_ns += 1
        return self.now_ns


@pytest.fixture
def host(monkeypatch):
    host = Host()
    monkeypatch.setattr(clock.time, "monotonic_ns", host.monotonic_ns)
    return host


@pytest.fixture
def stoppable():
    return StoppableClock(memoryview(bytearray(64)).cast("q"), 3)


def in_ns(seconds):
    return round(seconds * 1e9)


def test_a_clock_that_was_never_stopped_is_the_hosts(host, stoppable):
    assert in_ns(stoppable.now()) == host.now_ns
    assert not stoppable.stands


def test_a_stopped_clock_stands_and_goes_on_from_where_it_stood(host, stoppable):
    stoppable.stop()
    stood = stoppable.now()
    host.now_ns += 500
    assert stoppable.now() == stood
    assert stoppable.stands
    stoppable.go_on()
    host.now_ns += 70
    assert 70 <= in_ns(stoppable.now() - stood) < 80
    assert not stoppable.stands


def test_pauses_add_up(host, stoppable):
    began = stoppable.now()
    for _ in range(3):
        stoppable.stop()
        host.now_ns += 1000
        stoppable.go_on()
    assert in_ns(stoppable.now() - began) < 100


def test_a_process_can_be_given_a_clock_and_be_given_the_hosts_again(stoppable):
    stoppable.stop()
    clock.use(stoppable)
    try:
        assert clock.now() == stoppable.now()
        assert clock.stands()
    finally:
        clock.use(None)
    assert clock.now() > stoppable.now()
    assert not clock.stands()


@pytest.mark.parametrize("delayed", [False, True])
def test_in_no_order_does_a_clock_go_back_or_lose_a_pause(host, delayed):
    pause_ns = 10_000

    def scenario(order):
        host.now_ns = 1000  # each order from the same moment on
        memory, seen = order.memory(64), []
        stops_it, looks_at_it = (StoppableClock(memory.words(0, 8), 0) for _ in range(2))

        def stops():
            for _ in range(2):
                stops_it.stop()
                host.now_ns += pause_ns
                stops_it.go_on()

        order.run(stops=stops, looks=lambda: seen.extend(looks_at_it.now() for _ in range(3)))
        assert seen == sorted(seen)
        assert in_ns(StoppableClock(memory.words(0, 8), 0).now()) < 1000 + pause_ns

    every_order(scenario, preemptions=2, delayed=delayed)
    random_orders(scenario, random.Random(0), 100, delayed=delayed)
