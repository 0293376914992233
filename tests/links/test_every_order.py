"""Accesses of ranks to shared memory, in every order: no message is lost or torn, and no wake-up is missed."""

import math
import random

import pytest
import torch
from links.explorer import DeadlockError, every_order, random_orders

from paceline.links.memory import lending, rings
from paceline.links.memory.bells import Bells
from paceline.links.memory.lending import Lending
from paceline.links.memory.ring_ways import RingWays
from paceline.links.memory.shared import CACHE_LINE
from paceline.links.port import Port

RANDOM_ORDERS = 150
# With two preemptions a scenario takes a second, with three it takes ten.
PREEMPTIONS = [2, pytest.param(3, marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def small_rings(monkeypatch):
    """A ring that three messages fill. Lent messages may have a few bytes only."""
    monkeypatch.setattr(rings, "RING_BYTES", 512)
    monkeypatch.setattr(rings, "PIECE_BYTES", 128)
    monkeypatch.setattr(rings, "CHANNEL_BYTES", 2 * CACHE_LINE + 512)
    monkeypatch.setattr("paceline.links.memory.ring_ways.CHANNEL_BYTES", 2 * CACHE_LINE + 512)
    monkeypatch.setattr(lending, "LEAST_BYTES", 64)


def explore(scenario, preemptions):
    """Run in all orders with few preemptions, with immediate and delayed writes, then in random orders."""
    for delayed in (False, True):
        every_order(scenario, preemptions=preemptions, delayed=delayed)
        random_orders(scenario, random.Random(0), RANDOM_ORDERS, delayed=delayed)


class Rank:
    """A rank that waits like a context: listen, check, sleep."""

    in_background = False

    def __init__(self, rank, host):
        self.rank, self.bells, self.running = rank, host.bells, []
        ways = RingWays(rank, host.ranks, host.rings, host.bells, host.lending[rank])
        self.port = Port(rank, host.ranks, ways, host.bells, lambda _: None, lambda _: None)

    def until(self, is_so):
        while True:
            self.bells.listen(self.rank)
            for operation in self.running:
                operation.poll()
            if is_so():
                self.bells.ignore(self.rank)
                return
            self.bells.sleep(self.rank, math.inf)

    def wait(self, operation):
        self.until(operation.poll)

    def start(self, operation):
        self.running.append(operation)

    def send(self, to, tensor):
        sending = self.port.send(self, to, tensor, 0, 0)
        sending.poll()
        return sending

    def recv(self, source):
        receiving = self.port.recv(self, source, None, "copy", 0)
        self.wait(receiving)
        return receiving.take().tensor


class Host:
    """Ranks that share explored memory."""

    def __init__(self, order, ranks=2):
        self.ranks = ranks
        self.rings = order.memory(RingWays.nbytes(ranks))
        self.bells = Bells(order.memory(Bells.nbytes(ranks)), 0, ranks)
        made = {}

        def memory(name, nbytes):
            if name not in made:
                made[name] = order.memory(nbytes)
            return made[name]

        self.lending = [Lending(rank, memory) for rank in range(ranks)]
        self.rank = [Rank(rank, self) for rank in range(ranks)]

    def lent(self, count, value):
        return self.lending[0].copy(torch.full((count,), value, dtype=torch.uint8))


def full(count, value):
    return torch.full((count,), value, dtype=torch.uint8)


@pytest.mark.parametrize("preemptions", PREEMPTIONS)
def test_two_who_ring_at_once_wake_the_sleeper_for_both(preemptions):
    def scenario(order):
        bells = Bells(order.memory(Bells.nbytes(3)), 0, 3)
        news = order.memory(64).words(0, 2)
        seen = set()

        def ring(number):
            news[number] = 1
            bells.ring(2)

        def sleeper():
            while len(seen) < 2:
                bells.listen(2)
                found = {number for number in range(2) if news[number]} - seen
                if found:
                    seen.update(found)
                else:
                    bells.sleep(2, math.inf)

        order.run(first=lambda: ring(0), second=lambda: ring(1), sleeper=sleeper)

    explore(scenario, preemptions)


def test_a_bell_without_its_fence_is_slept_over():
    """The explorer detects errors: here two processes that miss each other's writes."""

    def scenario(order):
        words = order.memory(128).words(0, 16)

        def ringer():
            words[0] = 1
            if not words[8]:
                return
            words[9] = 1

        def sleeper():
            words[8] = 1
            if not words[0]:
                order.wait(lambda: words._words[9])

        order.run(ringer=ringer, sleeper=sleeper)

    every_order(scenario, preemptions=2)  # it is correct if writes are visible immediately
    with pytest.raises(DeadlockError):
        every_order(scenario, preemptions=2, delayed=True)


@pytest.mark.parametrize("preemptions", PREEMPTIONS)
def test_messages_pass_a_ring_whole_and_in_their_order(preemptions):
    sizes = [1, 200, 0]

    def scenario(order):
        host, received = Host(order), []

        def writer():
            sendings = [host.rank[0].send(1, full(size, n)) for n, size in enumerate(sizes)]
            for sending in sendings:
                host.rank[0].wait(sending)

        def reader():
            received.extend(host.rank[1].recv(0) for _ in sizes)

        order.run(writer=writer, reader=reader)
        assert [tensor.tolist() for tensor in received] == [[n] * size for n, size in enumerate(sizes)]

    explore(scenario, preemptions)


@pytest.mark.slow
def test_a_message_larger_than_the_ring_passes_it_piece_by_piece():
    def scenario(order):
        host, received = Host(order), []
        order.run(
            writer=lambda: host.rank[0].wait(host.rank[0].send(1, torch.arange(800) % 251)),
            reader=lambda: received.append(host.rank[1].recv(0)),
        )
        assert torch.equal(received[0], torch.arange(800) % 251)

    every_order(scenario, preemptions=1)
    random_orders(scenario, random.Random(1), RANDOM_ORDERS)
    random_orders(scenario, random.Random(2), RANDOM_ORDERS, delayed=True)


@pytest.mark.parametrize("preemptions", PREEMPTIONS)
def test_a_lent_message_that_is_taken_back_arrives_as_it_was(preemptions):
    def scenario(order):
        host, received = Host(order), []

        def writer():
            rank, tensor = host.rank[0], host.lent(96, 1)
            sending = rank.send(1, tensor)
            rank.until(sending.try_detach)
            tensor.fill_(9)
            rank.wait(rank.send(1, full(1, 2)))
            for rest in rank.running:
                rank.wait(rest)

        order.run(writer=writer, reader=lambda: received.extend(host.rank[1].recv(0) for _ in range(2)))
        assert [tensor.tolist() for tensor in received] == [[1] * 96, [2]]

    explore(scenario, preemptions)


@pytest.mark.parametrize("preemptions", PREEMPTIONS)
def test_lent_messages_one_after_the_other_are_taken_back_each(preemptions):
    def scenario(order):
        host, received = Host(order), []

        def writer():
            rank, tensor = host.rank[0], host.lent(64, 0)
            for number in range(3):
                tensor.fill_(number)
                sending = rank.send(1, tensor)
                rank.until(sending.try_detach)
            tensor.fill_(9)
            for rest in list(rank.running):
                rank.wait(rest)

        order.run(writer=writer, reader=lambda: received.extend(host.rank[1].recv(0) for _ in range(3)))
        assert [tensor.tolist() for tensor in received] == [[n] * 64 for n in range(3)]

    explore(scenario, preemptions)
