"""Cancelled operations, in every world."""

import pytest
import torch
from tasks import WORLDS, a_task

import paceline as pl
from paceline.errors import Cancelled


def test_a_cancelled_receive_is_done_and_raises_where_it_is_awaited(run_on):
    async def program(ctx):
        handle = ctx.start(ctx.net.recv(1 - ctx.rank))
        handle.cancel()
        try:
            await handle
        except Cancelled:
            return handle.done

    assert run_on(2, program) == [True, True]


def test_a_program_may_end_with_a_cancelled_handle_that_nobody_awaits(run_on):
    async def program(ctx):
        ctx.start(ctx.net.recv(1 - ctx.rank)).cancel()
        return "well"

    assert run_on(2, program) == ["well", "well"]


def test_a_cancelled_receive_takes_no_message(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(1, tag=1)
            await ctx.net.send(1, torch.tensor([5.0]))
            return None
        handle = ctx.start(ctx.net.recv(0))
        handle.cancel()
        await ctx.net.send(0, torch.empty(0), tag=1)
        return (await ctx.net.recv(0)).tensor.item()

    assert run_on(2, program)[1] == 5


def test_cancelling_what_is_done_changes_nothing(run_on):
    async def program(ctx):
        handle = ctx.start(ctx.sleep(0))
        await handle
        handle.cancel()
        return await handle

    assert run_on(1, program) == [None]


def test_a_cancelled_coroutine_runs_its_finally_and_goes_no_further(run_on):
    async def program(ctx):
        notes = []

        async def waits():
            try:
                notes.append("began")
                await ctx.net.recv(1 - ctx.rank)
                notes.append("received")
            finally:
                notes.append("cleaned up")

        handle = ctx.start(waits())
        await ctx.sleep(0.01)
        handle.cancel()
        return [notes, handle.done]

    assert run_on(2, program) == [[["began", "cleaned up"], True]] * 2


def test_whoever_awaits_a_handle_that_is_cancelled_learns_of_it(run_on):
    async def program(ctx):
        handle = ctx.start(ctx.net.recv(1 - ctx.rank))

        async def waits():
            try:
                await handle
            except Cancelled:
                return "cancelled"

        waiter = ctx.start(waits())
        await ctx.sleep(0.01)
        handle.cancel()
        return await waiter

    assert run_on(2, program) == ["cancelled", "cancelled"]


def test_first_of_handles_one_of_which_is_cancelled_gives_that_one(run_on):
    async def program(ctx):
        handles = [ctx.start(ctx.net.recv(1 - ctx.rank)), ctx.start(ctx.net.recv(1 - ctx.rank, tag=1))]

        async def cancels():
            await ctx.sleep(0.01)
            handles[1].cancel()

        ctx.start(cancels())
        winner = await ctx.first(handles)
        handles[0].cancel()
        return handles.index(winner)

    assert run_on(2, program) == [1, 1]


def test_a_half_sent_message_that_is_cancelled_arrives_whole(run_on):
    async def program(ctx):
        if ctx.rank:
            await ctx.sleep(0.05)
            return (await ctx.net.recv(0)).tensor.min().item()
        tensor = torch.ones(1_000_000)  # larger than a ring
        handle = ctx.start(ctx.net.send(1, tensor))
        handle.cancel()
        tensor.zero_()
        return handle.done

    assert run_on(2, program) == [True, 1]


class Cancels:
    """Computes a gradient, cancels another half way, and computes the first again."""

    def roles(self, workers):
        return ("worker",) * workers

    async def worker(self, ctx):
        async for batch in ctx.batches():
            if batch.step == 0:
                await ctx.model.compute(batch)
                first, expected = batch, ctx.model.gradient.clone()
                continue
            handle = ctx.start(ctx.model.compute(batch))
            await ctx.sleep(0.005)
            handle.cancel()
            await ctx.model.compute(first)
            assert torch.equal(ctx.model.gradient, expected), "the cancelled computation went on in it"


def slow_tanh():
    from torch import nn

    class Slow(nn.Module):
        def forward(self, x):
            import time

            time.sleep(0.03)
            return torch.tanh(x)

    return nn.Sequential(nn.Linear(4, 5), Slow(), Slow(), nn.Linear(5, 2)).double()


@pytest.mark.parametrize("world", WORLDS)
def test_a_cancelled_gradient_does_not_disturb_the_next(world):
    pl.train(a_task(model=slow_tanh), Cancels(), WORLDS[world](1), steps=2)
