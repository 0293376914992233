import asyncio

import pytest
import torch
from refusals import raised
from tasks import a_task, simulated

import paceline as pl
from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.process import Event, Process
from paceline.context import ANY
from paceline.errors import DeadlockError


def stuck(program, workers, **changes):
    with pytest.raises(DeadlockError) as caught:
        pl.run_program(program, simulated(workers, **changes))
    return list(caught.value.waits)


def test_a_ring_of_receives_is_reported_as_who_waits_for_whom():
    async def program(ctx):
        await ctx.net.recv((ctx.rank + 1) % ctx.net.size)

    assert stuck(program, 3) == [
        "rank 0 (worker) waits in receive from rank 1",
        "rank 1 (worker) waits in receive from rank 2",
        "rank 2 (worker) waits in receive from rank 0",
    ]


def test_only_those_who_wait_are_reported():
    async def program(ctx):
        if ctx.rank == 1:
            await ctx.net.recv(ANY)

    assert stuck(program, 3) == ["rank 1 (worker) waits in receive from any rank"]


def test_a_barrier_names_those_who_did_not_come():
    async def program(ctx):
        window = ctx.net.window("board", rows=1, like=torch.zeros(1))
        if ctx.rank != 2:
            await window.barrier()

    assert stuck(program, 3) == [
        "rank 0 (worker) waits in barrier for rank 2",
        "rank 1 (worker) waits in barrier for rank 2",
    ]


def test_a_wait_for_one_of_several_names_them_all():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.first([ctx.start(ctx.net.recv(1)), ctx.start(ctx.net.recv(2))])

    assert stuck(program, 3) == ["rank 0 (worker) waits in receive from rank 1 or receive from rank 2"]


def test_a_wait_for_a_coroutine_names_what_that_one_waits_for():
    async def program(ctx):
        async def waits():
            await ctx.net.recv(1)

        if ctx.rank == 0:
            await ctx.start(waits())

    assert stuck(program, 2) == ["rank 0 (worker) waits in receive from rank 1"]


def test_a_message_of_another_tag_does_not_help():
    async def program(ctx):
        if ctx.rank:
            await ctx.net.send(0, torch.ones(1), tag=4)
        else:
            await ctx.net.recv(1, tag=5)

    assert stuck(program, 2) == ["rank 0 (worker) waits in receive from rank 1"]


def test_a_deadlock_of_many_is_reported_in_short():
    async def program(ctx):
        await ctx.net.recv(ANY)

    with raised(DeadlockError, "5 more"):
        pl.run_program(program, simulated(25))


def test_calls_of_equal_time_come_in_the_order_in_which_they_were_asked_for():
    kernel, seen = Kernel(), []
    for name, at_s in [("b", 2.0), ("a", 1.0), ("c", 2.0), ("d", 1.0)]:
        kernel.at(at_s, seen.append, name)
    kernel.run([])
    assert seen == ["a", "d", "b", "c"]
    assert kernel.now == 2


def test_calls_that_calls_ask_for_come_in_their_turn():
    kernel, seen = Kernel(), []

    def call(name):
        seen.append((name, kernel.now))
        for after_s, other in follow.get(name, ()):
            kernel.at(kernel.now + after_s, call, other)

    follow = {
        "a": [(0.5, "b"), (2.0, "e"), (0.5, "c")],
        "b": [(0.0, "d")],
        "c": [(3.0, "g")],
        "e": [(0.0, "f")],
    }
    kernel.at(9.0, call, "h")
    kernel.at(1.0, call, "a")
    kernel.run([])
    assert seen == [
        ("a", 1.0), ("b", 1.5), ("c", 1.5), ("d", 1.5), ("e", 3.0), ("f", 3.0), ("g", 4.5), ("h", 9.0)
    ]  # fmt: skip


def test_waiters_go_on_in_the_order_in_which_they_came():
    kernel, event, seen = Kernel(), Event(), []
    event.result = "news"

    async def waits(name):
        seen.append((name, await event))

    kernel.at(1.0, kernel.finish, event)
    kernel.run([Process(kernel, waits(name), name) for name in "abc"])
    assert seen == [("a", "news"), ("b", "news"), ("c", "news")]


def test_time_is_skipped_only_where_nothing_else_happens():
    kernel, seen = Kernel(), []
    kernel.at(1.0, seen.append, "a")
    assert not kernel.skip_to(1.0)  # what was asked for first comes first
    assert kernel.now == 0
    assert kernel.skip_to(0.5)
    assert kernel.now == 0.5
    kernel.at(2.0, seen.append, "b")
    assert not kernel.skip_to(1.5)  # whichever was asked for last
    kernel.ready.append(Process(kernel, asyncio.sleep(0)))
    assert not kernel.skip_to(0.75)
    kernel.ready.pop().cancel()


def test_who_starts_a_program_goes_on_in_its_own_present():
    async def program(ctx):
        async def sends():
            await ctx.net.send(1, torch.ones(1000))

        if ctx.rank == 0:
            await ctx.sleep(1)  # until nothing else happens
            sending = ctx.start(sends())
            before_s = ctx.now()
            await sending
            return before_s, ctx.now()
        await ctx.net.recv(0)
        return None

    before_s, after_s = pl.run_program(program, simulated(2)).results[0]
    assert before_s == 1 < after_s


def test_an_error_in_the_background_is_raised_in_a_send_however_short():
    async def program(ctx):
        async def fails():
            raise LookupError("gone")

        if ctx.rank == 0:
            await ctx.sleep(1)  # until nothing else happens
            ctx.start(fails())
            try:
                await ctx.net.send(1, torch.ones(1))
            except LookupError:
                return "in the send"
        else:
            await ctx.net.recv(0)
        return "later"

    assert pl.run_program(program, simulated(2)).results[0] == "in the send"


def test_the_first_error_of_a_named_process_ends_all():
    kernel = Kernel()

    async def fails():
        raise LookupError("gone")

    async def waits():
        await Event()

    waiting = Process(kernel, waits(), "waits")
    with raised(LookupError, "gone"):
        kernel.run([waiting, Process(kernel, fails(), "fails")])
    waiting.cancel()


def test_a_thousand_workers_with_real_mathematics_are_ordinary():
    run = pl.train(a_task(batch_size=24), "all-reduce", simulated(1000), steps=1)
    assert len(run.bytes_sent) == 1000
    expected = pl.train(a_task(batch_size=24), "single", simulated(1), steps=1).parameters
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)
