import pytest
import torch
from tasks import simulated

import paceline as pl
from paceline.context import ANY
from paceline.errors import WorkerError


def heard(receives, senders=2):
    """Return the values that rank 0 receives from these sources, with all receives posted at the start.

    Rank r sends r at second r.
    """

    async def program(ctx):
        if ctx.rank:
            await ctx.sleep(ctx.rank)
            await ctx.net.send(0, torch.full((1,), float(ctx.rank)))
            return None
        handles = [ctx.start(ctx.net.recv(source)) for source in receives]
        return [int((await handle).tensor) for handle in handles]

    return pl.run_program(program, simulated(1 + senders)).results[0]


def test_a_message_goes_to_who_waits_for_its_source():
    assert heard([2, 1]) == [2, 1]


def test_who_waits_for_a_source_goes_before_who_waits_for_any():
    assert heard([ANY, 1]) == [2, 1]


def test_of_those_who_wait_for_any_the_first_goes_first():
    assert heard([ANY, ANY, ANY], senders=3) == [1, 2, 3]


def test_a_cancelled_receive_takes_no_message():
    async def program(ctx):
        if ctx.rank:
            await ctx.sleep(1)
            await ctx.net.send(0, torch.ones(1))
            await ctx.net.send(0, torch.full((1,), 2.0))
            return None
        alone = ctx.start(ctx.net.recv(1))
        alone.cancel()
        first, second, third = (ctx.start(ctx.net.recv(1)) for _ in range(3))
        second.cancel()
        return [int((await handle).tensor) for handle in (first, third)]

    assert pl.run_program(program, simulated(2)).results[0] == [1, 2]


def test_messages_wait_for_who_comes_late_and_for_the_tag_that_is_asked_for():
    async def program(ctx):
        if ctx.rank:
            for tag in (7, 8, 7):
                await ctx.net.send(0, torch.full((1,), float(10 * ctx.rank + tag)), tag=tag)
            return None
        await ctx.sleep(1)
        asked = [(2, 7), (ANY, 8), (ANY, 7), (1, 7), (2, 8), (2, 7)]
        return [int((await ctx.net.recv(source, tag=tag)).tensor) for source, tag in asked]

    assert pl.run_program(program, simulated(3)).results[0] == [27, 18, 17, 17, 28, 27]


def test_a_mailbox_that_was_emptied_keeps_nothing():
    """Thousands of tags, each used once, leave nothing in the mailbox."""

    async def program(ctx):
        if ctx.rank:
            for tag in (5, 6, 5):
                await ctx.net.send(0, torch.full((1,), float(ctx.rank)), tag=tag)
            return None
        await ctx.sleep(1)
        for source, tag in ((2, 5), (ANY, 6), (1, 5), (2, 6), (ANY, 5), (ANY, 5)):
            await ctx.net.recv(source, tag=tag)
        return [len(kept) for kept in (ctx.box._single, ctx.box._by_tag, ctx.box._by_source)]

    assert pl.run_program(program, simulated(3)).results[0] == [0, 0, 0]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("receives", [1, 2])
def test_a_message_that_cannot_be_stored_is_an_error_of_its_receiver(waits, receives):
    """The receive was no longer in the mailbox, and the end of the run raised KeyError in place of this error."""

    async def program(ctx):
        if ctx.rank:
            await ctx.sleep(1.0 if waits else 0.0)
            await ctx.net.send(0, torch.ones(1))
            return
        others = [ctx.start(ctx.net.recv(1, tag=1)) for _ in range(receives - 1)]
        await ctx.sleep(0.0 if waits else 1.0)
        await ctx.net.recv(1, torch.zeros(1, requires_grad=True))
        await others[0]

    with pytest.raises(WorkerError) as raised:
        pl.run_program(program, simulated(2))
    assert raised.value.rank == 0
    assert "requires grad" in str(raised.value)
