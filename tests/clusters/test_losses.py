"""A receive from any rank when all others are lost: another program of the same rank may still send, in every
world."""

import os
import signal

import pytest
import torch
from clusters.simulated.test_faults import ONE, Programs, lost_in
from refusals import raised
from tasks import simulated

import paceline as pl
from paceline.clusters.base.job import Job
from paceline.context import ANY
from paceline.errors import DeadlineError, PeerLost
from paceline.faults import Kill

TAG = 5
CLUSTERS = {
    "shared-memory": pl.Local(workers=2, deadline_s=60),
    "tcp": pl.Local(workers=2, link="tcp", deadline_s=60),
    "simulated": simulated(2, faults=[Kill(1, at="1ms")]),
    "impatient": pl.Local(workers=2, deadline_s=1.0),
}
WORLDS = ["shared-memory", "tcp", "simulated"]


def result(function, world, workers=2):
    """Return the result of a program of rank 0, if rank 1 dies immediately and the others sleep."""
    real = world != "simulated"

    async def program(ctx):
        if ctx.rank == 0:
            return await function(ctx)
        if real and ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        await ctx.sleep(1000)

    job = Job(strategy=Programs(program), roles=("worker",) * workers, seed=0)
    return CLUSTERS[world].run(job)[0].result


@pytest.mark.parametrize("world", WORLDS)
def test_it_is_told_of_the_loss_once_and_then_hears_its_own_rank(world):
    async def program(ctx):
        heard = []

        async def answer():
            while not heard:
                await ctx.sleep(0.001)
            await ctx.net.send(0, ONE, tag=TAG)

        ctx.start(answer())
        heard.append(await lost_in(ctx.net.recv(ANY, tag=TAG)))
        message = await ctx.net.recv(ANY, tag=TAG)
        return [heard, message.source]

    assert result(program, world) == [[1], 0]


@pytest.mark.parametrize("world", ["shared-memory", "simulated"])
def test_it_is_told_again_when_the_other_program_has_ended_without_a_word(world):
    async def program(ctx):
        heard = []

        async def be_silent():
            while not heard:
                await ctx.sleep(0.001)

        ctx.start(be_silent())
        for _ in range(2):
            heard.append(await lost_in(ctx.net.recv(ANY, tag=TAG)))
        return heard

    assert result(program, world) == [1, 1]


@pytest.mark.parametrize("world", WORLDS)
def test_in_the_background_it_waits_for_the_foreground(world):
    async def program(ctx):
        async def listen():
            return (await ctx.net.recv(ANY, tag=TAG)).source

        listening = ctx.start(listen())
        lost = await lost_in(ctx.net.recv(1))
        for _ in range(3):
            await ctx.sleep(0.001)
        await ctx.net.send(0, torch.zeros(1), tag=TAG)
        return [lost, await listening]

    assert result(program, world) == [1, 0]


@pytest.mark.parametrize("world", ["shared-memory", "simulated"])
def test_in_the_background_it_is_told_where_the_foreground_waits_for_it(world):
    async def program(ctx):
        async def listen():
            await ctx.sleep(0.01)  # so that the foreground waits before this program does
            await ctx.net.recv(ANY, tag=TAG)

        return await lost_in(ctx.start(listen()))

    assert result(program, world) == 1


def test_a_rank_that_hears_only_itself_may_compute_for_longer_than_the_deadline():
    """The others are lost, and the program has been notified, so no rank is late."""

    async def program(ctx):
        async def answer():
            await ctx.sleep(3.0)
            await ctx.net.send(0, ONE, tag=TAG)

        ctx.start(answer())
        try:
            await ctx.net.recv(ANY, tag=TAG)
        except PeerLost:
            return (await ctx.net.recv(ANY, tag=TAG)).source

    assert result(program, "impatient") == 0


def test_who_is_late_is_named_without_those_that_are_lost():
    async def program(ctx):
        await lost_in(ctx.net.recv(ANY, tag=TAG))
        await ctx.net.recv(ANY, tag=TAG)

    with raised(DeadlineError, rank=0, awaited="rank 2"):
        result(program, "impatient", workers=3)
