import math
import random

import pytest
import torch
from links.ends import Ends
from refusals import raised
from tasks import simulated

import paceline as pl
from paceline.context import ANY
from paceline.costs.link import Link
from paceline.errors import Cancelled, MismatchError
from paceline.links.emulated import EmulatedPort
from paceline.links.memory.rings import RING_BYTES
from paceline.links.port import Port

LATENCY_S, PER_BYTE_S = 0.5, 0.001


class Clock:
    """A clock that advances only on request."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


class EmulatedEnds(Ends):
    """Ports of a slow network, with a clock that jumps from one due time to the next."""

    def __init__(self, clock, ranks=2, latency_s=LATENCY_S, seconds_per_byte=PER_BYTE_S, links=None):
        super().__init__(ranks)
        self.clock = clock
        self.began_s = clock.now_s
        rest = (self.bells, self.sent.append, self.received.append)
        alike = [Link(1 / seconds_per_byte if seconds_per_byte else math.inf, latency_s)] * ranks
        self.ports = [
            EmulatedPort(rank, ranks, self.ways(rank, ranks), *rest, links=links[rank] if links else alike)
            for rank in range(ranks)
        ]

    def seconds(self):
        return self.clock.now_s - self.began_s

    def done_at(self, *operations):
        """Return the time at which each operation is done, if all are polled at their due times."""
        ends_s = {}
        while True:
            for operation in operations:
                if operation.poll():
                    ends_s.setdefault(operation, self.seconds())
            if len(ends_s) == len(operations):
                return [pytest.approx(ends_s[operation]) for operation in operations]
            due_s = min(operation.due_s() for operation in operations if not operation.done)
            assert self.clock.now_s < due_s < math.inf, "nothing would wake the waiting rank"
            self.clock.now_s = due_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("paceline.links.clock.now", clock)
    return clock


@pytest.fixture
def ends(clock):
    return EmulatedEnds(clock)


def of_bytes(nbytes, value=1):
    return torch.full((nbytes,), value, dtype=torch.uint8)


# The model


def test_a_message_takes_its_bytes_over_the_bandwidth_and_the_latency(ends):
    sent = ends.send(0, 1, of_bytes(2000))
    assert ends.done_at(sent, ends.post(1, 0)) == [2.0, 2.5]


def test_an_empty_message_takes_the_latency(ends):
    assert ends.done_at(ends.send(0, 1, of_bytes(0)), ends.post(1, 0)) == [0.0, 0.5]


def test_a_port_out_carries_one_message_at_a_time(clock):
    ends = EmulatedEnds(clock, ranks=3)
    sends = [ends.send(0, 1, of_bytes(1000)), ends.send(0, 2, of_bytes(3000))]
    assert ends.done_at(*sends, ends.post(1, 0), ends.post(2, 0)) == [1.0, 4.0, 1.5, 4.5]


def test_a_port_in_carries_one_message_at_a_time_in_the_order_of_arrival(clock):
    ends = EmulatedEnds(clock, ranks=4)
    ends.send(2, 0, of_bytes(3000))
    clock.now_s += 0.1
    ends.send(3, 0, of_bytes(1000))
    clock.now_s += 0.1
    ends.send(1, 0, of_bytes(1000))
    assert ends.done_at(ends.post(0, 3), ends.post(0, 2)) == [4.5, 3.5]
    assert ends.done_at(ends.post(0, 1)) == [5.5]


def test_ports_out_and_in_do_not_hinder_each_other(ends):
    ends.send(0, 1, of_bytes(2000))
    ends.send(1, 0, of_bytes(2000))
    assert ends.done_at(ends.post(1, 0), ends.post(0, 1)) == [2.5, 2.5]


def test_a_message_that_is_asked_for_late_has_come_in_the_meantime(ends):
    ends.send(0, 1, of_bytes(2000))
    ends.clock.now_s += 60
    assert ends.done_at(ends.post(1, 0)) == [60.0]
    ends.send(0, 1, of_bytes(2000))
    assert ends.done_at(ends.post(1, 0)) == [62.5]


def test_two_messages_that_wait_unread_arrive_as_if_they_had_been_read(clock):
    ends = EmulatedEnds(clock, ranks=3)
    ends.send(1, 0, of_bytes(1000))
    clock.now_s += 60
    ends.send(2, 0, of_bytes(1000))
    assert ends.done_at(ends.post(0, 2), ends.post(0, 1)) == [61.5, 60.0]


@pytest.mark.parametrize("seed", range(20))
def test_random_traffic_takes_as_long_as_in_the_simulation(clock, seed):
    rng = random.Random(seed)
    ways = [(source, to) for source in range(4) for to in range(4) if source != to]
    traffic = sorted((rng.uniform(0, 3), *rng.choice(ways), rng.randrange(3000)) for _ in range(16))

    async def receive(ctx, source, tag):
        await ctx.net.recv(source, tag=tag)
        return [tag, ctx.now()]

    async def program(ctx):
        handles = []
        for tag, (_, source, to, _) in enumerate(traffic):
            if to == ctx.rank:
                handles.append(ctx.start(receive(ctx, source, tag)))
        for tag, (start_s, source, to, nbytes) in enumerate(traffic):
            if source == ctx.rank:
                await ctx.sleep(start_s - ctx.now())
                ctx.start(ctx.net.send(to, of_bytes(nbytes), tag=tag))
        return [await handle for handle in handles]

    link = pl.Link(bandwidth=1 / PER_BYTE_S, latency=LATENCY_S)
    results = pl.run_program(program, simulated(4, link=link)).results
    predicted = dict(pair for pairs in results for pair in pairs)

    ends = EmulatedEnds(clock, ranks=4)
    wanted = [ends.post(to, source, tag=tag) for tag, (_, source, to, _) in enumerate(traffic)]
    for tag, (start_s, source, to, nbytes) in enumerate(traffic):
        clock.now_s = ends.began_s + start_s
        ends.send(source, to, of_bytes(nbytes), tag=tag)
    ends.done_at(*wanted)
    assert {tag: operation.ended_s - ends.began_s for tag, operation in enumerate(wanted)} == pytest.approx(
        predicted
    )


# Delivery


def test_any_receives_what_arrives_first_though_another_was_sent_before(clock):
    ends = EmulatedEnds(clock, ranks=4)
    ends.send(1, 2, of_bytes(5000))
    ends.send(1, 0, of_bytes(10, value=1))  # waits for its output port
    asked = ends.post(0, ANY)
    asked.poll()
    clock.now_s += 1
    ends.send(3, 0, of_bytes(10, value=3))
    assert ends.done_at(asked) == [1.51]
    assert asked.take().source == 3
    assert ends.done_at(ends.post(0, ANY)) == [5.51]


def test_messages_of_one_tag_keep_their_order_where_bandwidth_is_unlimited(clock):
    ends = EmulatedEnds(clock, seconds_per_byte=0.0)
    for value in range(5):
        ends.send(0, 1, of_bytes(1, value))
    received = [ends.post(1, 0) for _ in range(5)]
    assert ends.done_at(*received) == [0.5] * 5
    assert [operation.take().tensor.item() for operation in received] == [0, 1, 2, 3, 4]


def test_what_arrives_is_combined_when_it_is_due(ends):
    own = torch.ones(4)
    ends.send(0, 1, torch.full((4,), 2.0))
    operation = ends.post(1, 0, own, "sum")
    operation.poll()
    assert own.tolist() == [1.0] * 4
    ends.done_at(operation)
    assert own.tolist() == [3.0] * 4
    assert operation.take().tensor is own


def test_a_message_that_does_not_fit_is_refused_when_it_is_due(ends):
    ends.send(0, 1, torch.ones(5))
    operation = ends.post(1, 0, torch.zeros(3))
    ends.done_at(operation)
    with raised(MismatchError, sent="float32[5]", receiver=1, expected="float32[3]"):
        operation.take()


def test_a_cancelled_receive_leaves_its_message_to_the_next(ends):
    ends.send(0, 1, of_bytes(1000))
    operation = ends.post(1, 0)
    operation.poll()
    operation.cancel()
    with pytest.raises(Cancelled):
        operation.take()
    assert ends.done_at(ends.post(1, 0)) == [1.5]


# Large messages


def test_a_sender_waits_no_longer_than_its_port_takes_though_nobody_reads(clock):
    ends = EmulatedEnds(clock, seconds_per_byte=1e-6)
    tensor = of_bytes(3 * RING_BYTES)
    small = of_bytes(8, value=7)
    large_s, small_s = 3 * RING_BYTES * 1e-6, 8e-6
    sends = [ends.send(0, 1, tensor), ends.send(0, 1, small)]
    assert ends.done_at(*sends) == [large_s, large_s + small_s]
    tensor.zero_()
    small.zero_()
    received = [ends.post(1, 0), ends.post(1, 0)]
    for _ in range(20):  # the ring fills and empties
        for operation in (*ends.waiter.running, *received):
            operation.poll()
    ends.done_at(*received)
    assert [operation.take().tensor.sum().item() for operation in received] == [3 * RING_BYTES, 56]
    assert [operation.nbytes for operation in ends.sent] == [3 * RING_BYTES, 8]


def test_a_send_that_is_cancelled_under_way_arrives_whole_and_counts(clock):
    ends = EmulatedEnds(clock, seconds_per_byte=1e-6)
    tensor = of_bytes(3 * RING_BYTES)
    operation = ends.send(0, 1, tensor)
    operation.cancel()
    tensor.zero_()
    received = ends.post(1, 0)
    for _ in range(20):
        for each in (*ends.waiter.running, received):
            each.poll()
    ends.done_at(received)
    assert received.take().tensor.sum() == 3 * RING_BYTES
    assert [operation.nbytes for operation in ends.sent] == [3 * RING_BYTES]
    with pytest.raises(Cancelled):
        operation.take()


def test_a_detached_send_arrives_whole_and_takes_its_time(clock):
    ends = EmulatedEnds(clock, seconds_per_byte=1e-6)
    tensor = of_bytes(3 * RING_BYTES)
    operation = ends.send(0, 1, tensor)
    operation.try_detach()
    tensor.zero_()
    received = ends.post(1, 0)
    for _ in range(20):
        for each in (*ends.waiter.running, received):
            each.poll()
    assert ends.done_at(operation) == [3e-6 * RING_BYTES]
    ends.done_at(received)
    assert received.take().tensor.sum() == 3 * RING_BYTES
    assert [operation.nbytes for operation in ends.sent] == [3 * RING_BYTES]


def test_a_send_that_is_cancelled_when_all_is_in_the_ring_counts_too(ends):
    operation = ends.send(0, 1, of_bytes(1000))
    operation.cancel()
    assert operation.done
    assert len(ends.sent) == 1
    assert ends.done_at(ends.post(1, 0)) == [1.5]


def test_a_send_that_is_cancelled_before_it_began_takes_no_time(ends):
    operation = ends.ports[0].send(ends.waiter, 1, of_bytes(1000), 0, 0)
    operation.cancel()
    ends.send(0, 1, of_bytes(500, value=2))
    received = ends.post(1, 0)
    assert ends.done_at(received) == [1.0]
    assert received.take().tensor[0] == 2
    assert len(ends.sent) == 0


# Records


def test_the_times_noted_are_those_of_the_ports(clock):
    ends = EmulatedEnds(clock, ranks=3)
    first, second = ends.send(1, 0, of_bytes(1000)), ends.send(1, 0, of_bytes(2000), tag=1)
    other = ends.send(2, 0, of_bytes(1000), tag=2)
    received = [ends.post(0, ANY, tag=tag) for tag in range(3)]
    ends.done_at(first, second, other, *received)

    def times(begin_s, operation):
        return [pytest.approx(time_s - ends.began_s) for time_s in (begin_s, operation.ended_s)]

    assert times(first.began_s, first) == [0.0, 1.0]
    assert times(second.began_s, second) == [1.0, 3.0]
    found = [times(operation.found_s, operation) for operation in received]
    assert found == [[0.5, 1.5], [2.5, 4.5], [1.5, 2.5]]


def test_a_plain_link_knows_no_such_times():
    ends = Ends()
    assert type(ends.ports[0]) is Port
    sent, received = ends.send(0, 1, of_bytes(10)), ends.post(1, 0)
    ends.finish(received)
    assert (sent.ended_s, received.ended_s) == (math.inf, math.inf)


def test_a_slow_link_is_slow_and_the_others_are_not(clock):
    slow, usual = Link(250, 1.0), Link(1000, 0.5)
    ends = EmulatedEnds(clock, ranks=3, links=[[usual, slow, usual], [slow, usual, usual], [usual] * 3])
    sends = [ends.send(0, 1, of_bytes(1000)), ends.send(1, 2, of_bytes(1000))]
    assert ends.done_at(*sends, ends.post(1, 0), ends.post(2, 1)) == [4.0, 1.0, 5.0, 1.5]
