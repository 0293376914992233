"""Records of the ranks of a run, in every world."""

import pytest
import torch
from tasks import WORLDS, a_task

import paceline as pl


class Reports:
    """Reports a value a step."""

    def roles(self, workers):
        return ("worker",) * workers

    async def worker(self, ctx):
        async for batch in ctx.batches():
            await ctx.model.compute(batch)
            ctx.log.report(squared=float(batch.step**2), loss=5.0)


@pytest.mark.parametrize("world", WORLDS)
def test_what_a_strategy_reports_is_in_the_record_of_its_step(world):
    run = pl.train(a_task(), Reports(), WORLDS[world](2), steps=3)
    assert [record["squared"] for record in run.history] == [0, 1, 4]
    assert run.loss == 5


@pytest.mark.parametrize("world", WORLDS)
def test_bytes_and_messages_are_counted_where_they_are_sent(world):
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, torch.zeros(10))
            await ctx.net.send(1, torch.zeros(0))
        else:
            await ctx.net.recv(0)
            await ctx.net.recv(0)

    run = pl.run_program(program, WORLDS[world](2))
    assert run.bytes_sent == [40, 0]
    assert run.messages_sent == [2, 0]
