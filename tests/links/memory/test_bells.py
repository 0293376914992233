import os
import socket
import threading
import time

import pytest
from processes import wait_until

from paceline.links.memory import futex
from paceline.links.memory.bells import Bells, SocketBells
from paceline.links.memory.shared import SharedMemory


def make_bells(ranks=2):
    return Bells(SharedMemory.create("test-bells", Bells.nbytes(ranks)), 0, ranks)


LOST_S = 40.0
"""A sleep that takes this long has missed its ring. The test then fails, instead of waiting for its time limit."""


def slept_through(bells, rank):
    """Sleep until a ring. Return whether none came."""
    began_s = time.monotonic()
    bells.sleep(rank, LOST_S)
    return time.monotonic() - began_s >= LOST_S


def listens(bells, rank):
    return bool(bells._words[8 * rank])


def doze(bells, rank, timeout_s=2 * LOST_S):
    bells.listen(rank)
    bells.sleep(rank, timeout_s)


def sleeping(bells, rank):
    sleeper = threading.Thread(target=doze, args=(bells, rank), daemon=True)
    sleeper.start()
    wait_until(lambda: listens(bells, rank), "the thread listens")
    return sleeper


def test_ringing_all_rings_each():
    bells = make_bells(3)
    for rank in range(3):
        bells.listen(rank)
    bells.ring_all()
    assert not any(slept_through(bells, rank) for rank in range(3))


def test_nobody_sleeps_on_a_bell_that_has_rung_since():
    bells = make_bells()
    bells.listen(0)
    bells.ring(0)
    assert not slept_through(bells, 0)


def test_a_sleeper_in_another_thread_is_woken():
    bells = make_bells()
    sleeper = sleeping(bells, 0)
    bells.ring(0)
    sleeper.join(LOST_S)
    assert not sleeper.is_alive()


def test_ringing_one_bell_does_not_wake_the_sleeper_of_another():
    bells = make_bells()
    woken = threading.Event()

    def sleep():
        doze(bells, 0)
        woken.set()

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    wait_until(lambda: listens(bells, 0), "the thread listens")
    bells.ring(1)
    assert not woken.wait(0.05)
    bells.ring(0)
    assert woken.wait(LOST_S)


def test_a_sleep_ends_at_its_timeout():
    bells = make_bells()
    doze(bells, 0, 0.001)
    assert not listens(bells, 0)


def test_a_futex_wakes_everyone_who_sleeps_on_its_word():
    memory = SharedMemory.create("test-futex", 64)
    threads = [
        threading.Thread(target=futex.wait, args=(memory.address, 0, 2 * LOST_S), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()

    def all_woken():
        futex.wake(memory.address)  # repeatedly, because the thread may not sleep yet
        return not any(thread.is_alive() for thread in threads)

    wait_until(all_woken, "all threads are woken")


def play(bells, turns, me, count):
    """Increment a word in turns with another process, and sleep during the other's turn."""
    while True:
        bells.listen(me)
        turn = turns[0]
        if turn >= count:
            return
        if turn % 2 == me:
            turns[0] = turn + 1
            bells.ring(1 - me)
        else:
            assert not slept_through(bells, me)


@pytest.mark.parametrize("count", [5_000])
def test_no_wake_up_is_lost_between_two_processes(count):
    bells = make_bells()
    turns = SharedMemory.create("test-turns", 64).words(0, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            play(bells, turns, 1, count)
            code = 0
        finally:
            os._exit(code)
    play(bells, turns, 0, count)
    assert os.waitpid(child, 0)[1] == 0
    assert turns[0] == count


# Bells with sleepers that also watch sockets


class Mailbox:
    """A socket as a source of news."""

    def __init__(self):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.drained = 0

    def fileno(self):
        return self.ours.fileno()

    def has_news(self):
        try:
            self.drained += len(self.ours.recv(100))
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def memory():
    return SharedMemory.create("test-bells", Bells.nbytes(2))


@pytest.fixture
def name():
    return os.urandom(8).hex()


@pytest.fixture
def bells(memory, name):
    bells = SocketBells(memory, 0, 2, name)
    yield bells
    bells.close()


def test_a_sleeper_at_a_socket_is_woken_by_another_who_has_the_bells(bells, memory, name):
    bells.watch(0)
    sleeper = sleeping(bells, 0)
    SocketBells(memory, 0, 2, name).ring(0)
    sleeper.join(LOST_S)
    assert not sleeper.is_alive()


def test_a_sleeper_is_woken_by_what_it_watches(bells):
    mailbox = Mailbox()
    bells.watch(0, mailbox)
    sleeper = sleeping(bells, 0)
    mailbox.theirs.send(b"news")
    sleeper.join(LOST_S)
    assert not sleeper.is_alive()


def test_nobody_sleeps_on_news_that_have_come_before(bells):
    mailbox = Mailbox()
    bells.watch(0, mailbox)
    mailbox.theirs.send(b"news")
    doze(bells, 0)
    assert mailbox.drained == 4
    bells.listen(0)
    bells.ring(0)
    assert not slept_through(bells, 0)


def test_a_ring_wakes_once(bells, memory, name):
    bells.watch(0)
    sleeper = sleeping(bells, 0)
    other = SocketBells(memory, 0, 2, name)
    for _ in range(10):
        other.ring(0)
    sleeper.join(LOST_S)
    doze(bells, 0, 1e-3)  # reads the remaining bytes of the rings
    began_s = time.monotonic()
    doze(bells, 0, 0.05)
    assert time.monotonic() - began_s >= 0.05


def test_ringing_for_one_who_has_gone_does_no_harm(bells, memory, name):
    gone = SocketBells(memory, 0, 2, name)
    gone.watch(1)
    gone.listen(1)  # it was killed in its sleep
    gone.close()
    bells.ring(1)
    assert not listens(bells, 1)


@pytest.mark.parametrize("count", [5_000])
def test_no_wake_up_at_a_socket_is_lost_between_two_processes(memory, name, count):
    turns = SharedMemory.create("test-turns", 64).words(0, 1)
    child = os.fork()
    me = 1 if child == 0 else 0
    code = 1
    try:
        bells = SocketBells(memory, 0, 2, name)
        bells.watch(me)
        play(bells, turns, me, count)
        code = 0
    finally:
        if child == 0:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert turns[0] == count
