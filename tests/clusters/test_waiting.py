"""Waiting for the first of several operations, and for time, in every world."""

import torch


def test_first_gives_the_one_that_is_done_first(run_on):
    async def program(ctx):
        if ctx.rank == 1:
            await ctx.net.recv(0, tag=1)  # until the message of rank 2 has arrived
        if ctx.rank:
            await ctx.net.send(0, torch.tensor([ctx.rank]))
            return None
        handles = [ctx.start(ctx.net.recv(1)), ctx.start(ctx.net.recv(2))]
        winner = await ctx.first(handles)
        await ctx.net.send(1, torch.empty(0), tag=1)
        open_ones = [handle for handle in handles if not handle.done]
        last = await ctx.first(open_ones)
        return [handles.index(winner), (await winner).source, handles.index(last), (await last).source]

    assert run_on(3, program)[0] == [1, 2, 0, 1]


def test_first_gives_the_leftmost_where_several_are_done(run_on):
    async def program(ctx):
        handles = [ctx.start(ctx.sleep(0.03)), ctx.start(ctx.sleep(0.02)), ctx.start(ctx.sleep(0.01))]
        await ctx.sleep(0.06)
        first = await ctx.first(handles)
        return handles.index(first)

    assert run_on(1, program) == [0]


def test_the_ones_that_first_left_behind_disturb_no_later_wait(run_on):
    async def program(ctx):
        quick, slow = ctx.start(ctx.sleep(0.02)), ctx.start(ctx.sleep(0.06))
        await ctx.first([quick, slow])
        began_s = ctx.now()
        await ctx.sleep(0.2)  # the slow one ends in the midst of it
        return [ctx.now() - began_s, slow.done]

    ((slept_s, done),) = run_on(1, program)
    assert slept_s >= 0.2 - 1e-9
    assert done


def test_time_never_runs_backwards(run_on):
    async def program(ctx):
        if ctx.rank:
            for _ in range(3):
                await ctx.net.recv(0)
            return None
        times = [ctx.now()]
        for _ in range(3):
            handle = ctx.start(ctx.net.send(1, torch.ones(10)))
            await ctx.sleep(0.02)
            times.append(ctx.now())
            await ctx.first([handle])
            times.append(ctx.now())
        return times

    times = run_on(2, program)[0]
    assert times == sorted(times)


def test_sleep_takes_its_time(run_on):
    async def program(ctx):
        began_s = ctx.now()
        await ctx.sleep(0.05)
        return ctx.now() - began_s

    assert run_on(1, program)[0] >= 0.05 - 1e-9


def test_a_coroutine_that_sleeps_is_woken_while_its_rank_waits_for_a_message(run_on):
    async def program(ctx):
        if ctx.rank:
            await ctx.net.recv(0)
            await ctx.net.send(0, torch.empty(0))
            return None

        async def naps_often():
            for _ in range(20):
                await ctx.sleep(0.002)
            await ctx.net.send(1, torch.empty(0))

        ctx.start(naps_often())
        await ctx.net.recv(1)  # arrives only if the coroutine is woken meanwhile
        return "woken"

    assert run_on(2, program)[0] == "woken"
