"""Seconds on the simulated network, which are known in closed form: latency a, seconds per byte b, p ranks, n bytes."""

import pytest
import torch
from tasks import simulated

import paceline as pl
from paceline import collectives
from paceline.context import ANY
from paceline.trace import Kind

A, B = 0.003, 1e-6  # 8 Mbit/s
LINK = pl.Link("8Mbps", "3ms")
N = 4000  # bytes
TENSOR = torch.zeros(N // 4)


def seconds(program, workers, **changes):
    run = pl.run_program(program, simulated(workers, **({"link": LINK} | changes)))
    return run.results, run


def close(value):
    return pytest.approx(value, rel=1e-9)


def test_a_message_takes_its_latency_and_its_bytes():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, TENSOR)
            return ctx.now()
        await ctx.net.recv(0)
        return ctx.now()

    (sent_s, received_s), _ = seconds(program, 2)
    assert sent_s == close(N * B), "the sender is free when its port has carried the message"
    assert received_s == close(A + N * B)


def test_a_message_without_bytes_takes_its_latency():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, TENSOR[:0])
        else:
            await ctx.net.recv(0)
        return ctx.now()

    assert seconds(program, 2)[0] == [0, close(A)]


def test_an_ideal_link_costs_nothing():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, TENSOR)
        else:
            await ctx.net.recv(0)
        return ctx.now()

    assert seconds(program, 2, link=pl.Link.ideal())[0] == [0, 0]


def test_messages_to_two_ranks_leave_one_after_the_other():
    async def program(ctx):
        if ctx.rank == 0:
            handles = [ctx.start(ctx.net.send(to, TENSOR)) for to in (1, 2)]
            for handle in handles:
                await handle
        else:
            await ctx.net.recv(0)
        return ctx.now()

    assert seconds(program, 3)[0] == [close(2 * N * B), close(A + N * B), close(A + 2 * N * B)]


def test_messages_from_two_ranks_come_in_one_after_the_other():
    async def program(ctx):
        if ctx.rank:
            await ctx.net.send(0, TENSOR)
            return ctx.now()
        times = []
        for source in (1, 2):
            await ctx.net.recv(source)
            times.append(ctx.now())
        return times

    assert seconds(program, 3)[0] == [[close(A + N * B), close(A + 2 * N * B)], close(N * B), close(N * B)]


def test_a_message_never_overtakes_another_on_the_same_way():
    async def program(ctx):
        if ctx.rank == 0:
            ctx.start(ctx.net.send(1, TENSOR, tag=1))
            await ctx.start(ctx.net.send(1, TENSOR[:2] + 1, tag=2))  # has to wait for the port
            await ctx.net.send(1, TENSOR[:2] + 2, tag=2)  # finds the port free, while the other is on its way
            return None
        return [(await ctx.net.recv(0, tag=2)).tensor[0].item() for _ in range(2)]

    assert seconds(program, 2)[0][1] == [1, 2]


def test_a_port_takes_in_what_comes_first_whoever_sends_it():
    async def program(ctx):
        if ctx.rank == 0:
            ctx.start(ctx.net.send(1, TENSOR))
            await ctx.net.send(2, TENSOR)  # leaves at N b, comes at N b + a
        elif ctx.rank == 1:
            await ctx.net.recv(0)
        elif ctx.rank == 3:
            await ctx.sleep(1.5 * N * B)
            await ctx.net.send(2, TENSOR)  # leaves at 1.5 N b, comes at 1.5 N b + a
        else:
            await ctx.net.recv(0)
            first_s = ctx.now()
            await ctx.net.recv(3)
            return [first_s, ctx.now()]

    assert seconds(program, 4)[0][2] == [close(2 * N * B + A), close(3 * N * B + A)]


def test_a_port_carries_in_and_out_at_once():
    async def program(ctx):
        handle = ctx.start(ctx.net.send(1 - ctx.rank, TENSOR))
        await ctx.net.recv(1 - ctx.rank)
        await handle
        return ctx.now()

    assert seconds(program, 2)[0] == [close(A + N * B)] * 2


def test_a_message_that_has_come_costs_no_more_when_it_is_asked_for():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, TENSOR)
            return None
        await ctx.sleep(1.0)
        await ctx.net.recv(0)
        return ctx.now()

    assert seconds(program, 2)[0][1] == 1


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_flat_reduce_and_broadcast_takes_what_the_server_formula_says(p):
    async def program(ctx):
        await collectives.reduce(ctx, TENSOR.clone(), root=0, algorithm="flat")
        await collectives.broadcast(ctx, TENSOR.clone(), root=0, algorithm="flat")

    _, run = seconds(program, p)
    assert run.seconds == close(2 * (p - 1) * N * B + 2 * A)
    assert run.messages_sent == [p - 1] + [1] * (p - 1)


@pytest.mark.parametrize("p", [2, 4, 5, 8, 40])
def test_a_chunked_ring_takes_what_its_formula_says(p):
    async def program(ctx):
        await collectives.all_reduce(ctx, TENSOR.clone(), "ring")

    _, run = seconds(program, p)
    assert run.seconds == close(2 * (p - 1) * A + 2 * N * (p - 1) / p * B)
    assert run.bytes_sent == [2 * N * (p - 1) // p] * p
    assert run.messages_sent == [2 * (p - 1)] * p


@pytest.mark.parametrize("k", [1, 2, 3])
def test_recursive_doubling_takes_what_its_formula_says(k):
    async def program(ctx):
        await collectives.all_reduce(ctx, TENSOR.clone(), "recursive-doubling")

    assert seconds(program, 2**k)[1].seconds == close(k * (A + N * B))


def test_ranks_of_one_host_talk_over_the_link_inside():
    inside = pl.Link("80Mbps", "1ms")

    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, TENSOR)
            await ctx.net.send(2, TENSOR)
        elif ctx.rank < 3:
            await ctx.net.recv(0)
        return [ctx.now(), ctx.net.hosts[ctx.rank]]

    results, _ = seconds(program, 4, hosts=2, inside=inside)
    inside_s = 0.001 + N * B / 10
    assert results[1] == [close(inside_s), 0]
    assert results[2] == [close(N * B / 10 + A + N * B), 1]


def test_every_second_of_a_message_is_in_the_trace():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.sleep(1.0)
            await ctx.net.send(1, TENSOR)
        else:
            await ctx.net.recv(0)

    _, run = seconds(program, 2)
    sender, receiver = run.trace.spans
    (sleep,), (send,) = sender.of(Kind.SLEEP), sender.of(Kind.SEND)
    (wait,), (receive,) = receiver.of(Kind.WAIT), receiver.of(Kind.RECEIVE)
    assert (sleep["start_s"], sleep["end_s"]) == (0, 1)
    assert (send["start_s"], send["end_s"], send["peer"], send["nbytes"]) == (1, close(1 + N * B), 1, N)
    assert (wait["start_s"], wait["end_s"], wait["peer"]) == (0, close(1 + A), 0)
    assert (receive["start_s"], receive["end_s"]) == (close(1 + A), close(1 + A + N * B))


# One slow link


SLOW_LINK = {(0, 1): pl.Link("1Mbps", "20ms")}


def test_a_slow_link_is_slow_in_both_directions_and_the_others_are_not():
    async def program(ctx):
        to, source = (ctx.rank + 1) % 3, (ctx.rank - 1) % 3
        sending = ctx.start(ctx.net.send(to, TENSOR))
        await ctx.net.recv(source)
        received_s = ctx.now()
        await sending
        return received_s

    received_s, _ = seconds(program, 3, slow_links=SLOW_LINK)
    assert received_s == [close(A + N * B), close(0.02 + N * 8e-6), close(A + N * B)]


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling"])
def test_a_collective_over_a_slow_link_takes_as_long_timed_as_a_whole_as_message_by_message(algorithm):
    async def program(ctx):
        await collectives.all_reduce(ctx, TENSOR.clone(), algorithm)
        return ctx.now()

    whole, _ = seconds(program, 4, slow_links=SLOW_LINK)
    disturbed, _ = seconds(program, 4, slow_links=SLOW_LINK, faults=(pl.faults.Kill(3, at=1e6),))
    usual, _ = seconds(program, 4)
    assert whole == close(disturbed)
    assert max(whole) > max(usual)


def test_messages_that_arrive_together_are_served_in_the_order_of_their_senders():
    """Whatever the order of their sends. A thousand of them take a thousand turns."""

    async def program(ctx):
        if ctx.rank:
            await ctx.net.send(0, TENSOR)
            return None
        found = []
        for _ in range(len(ctx.workers) - 1):
            found.append(((await ctx.net.recv(ANY)).source, ctx.now()))
        return found

    found = seconds(program, 40)[0][0]
    assert [source for source, _ in found] == list(range(1, 40))
    assert [when for _, when in found] == [close(A + n * N * B) for n in range(1, 40)]


def test_a_message_of_a_lower_rank_goes_first_if_it_is_sent_later_at_the_same_time():
    async def program(ctx):
        if ctx.rank == 0:
            return [(await ctx.net.recv(ANY)).source for _ in range(3)]
        for _ in range(4 - ctx.rank):  # a higher rank sends earlier
            await ctx.sleep(0.25 * 4 / (4 - ctx.rank))
        await ctx.net.send(0, TENSOR)
        return None

    assert seconds(program, 4)[0][0] == [1, 2, 3]
