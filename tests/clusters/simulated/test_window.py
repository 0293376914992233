"""Shared memory of one host in virtual time: its cost, and the choice of `auto`."""

import pytest
import torch
from refusals import has, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.collectives import choose_algorithm

MEMORY = pl.Link(bandwidth=1000.0, latency=0.5)  # bytes a second, seconds


def in_memory(workers, **changes):
    return simulated(workers, link="shared-memory", inside=MEMORY, **changes)


def test_a_barrier_takes_the_memorys_latency_from_when_the_last_has_come():
    async def program(ctx):
        window = ctx.net.window("board", rows=1, like=torch.zeros(1))
        await ctx.sleep(float(ctx.rank))
        await window.barrier()
        return ctx.now()

    assert pl.run_program(program, in_memory(3)).results == [2.5] * 3


def test_a_read_takes_the_bytes_of_the_others_rows():
    async def program(ctx):
        window = ctx.net.window("board", rows=3, like=torch.zeros(250))
        await window.reduce(slice(0, 250), [0, 1, 2], into=torch.zeros(250))
        return ctx.now()

    assert pl.run_program(program, in_memory(1)).results == [pytest.approx(2.0)]  # two rows of 1,000 bytes


@pytest.mark.parametrize("workers", [2, 4])
def test_a_step_through_shared_memory_takes_two_barriers_and_one_shard_of_the_others(workers):
    run = pl.train(a_task(batch_size=8), "all-reduce:algorithm=shared", in_memory(workers), steps=20)
    shards = {8 * (37 * (r + 1) // workers - 37 * r // workers) * (workers - 1) for r in range(workers)}
    steps_s = [
        after.seconds - before.seconds for before, after in zip(run.history, run.history[1:], strict=False)
    ]
    assert steps_s == [pytest.approx(0.01 + 2 * 0.5 + max(shards) / 1000, rel=0.02)] * 19


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_auto_means_in_simulated_memory_what_it_means_in_real_memory(workers):
    async def program(ctx):
        sizes = (4, 2**15, 2**20, 2**24)
        return [choose_algorithm(ctx.net, n, for_run=for_run) for n in sizes for for_run in (False, True)]

    real = pl.run_program(program, pl.Local(workers=workers)).results
    assert pl.run_program(program, in_memory(workers)).results == real
    assert "shared" in real[0]


@pytest.mark.parametrize("workers", [2, 3])
def test_auto_means_on_a_simulated_link_what_it_means_on_an_emulated_one(workers):
    async def program(ctx):
        sizes = (4, 2**15, 2**20, 2**24)
        return [choose_algorithm(ctx.net, n, for_run=for_run) for n in sizes for for_run in (False, True)]

    link = pl.Link("1Gbps", "1ms")
    real = pl.run_program(program, pl.Local(workers=workers, link=link)).results
    assert pl.run_program(program, simulated(workers, link=link)).results == real


def test_a_prediction_of_the_default_is_of_the_algorithm_that_local_takes():
    runs = [
        pl.train(a_task(), "all-reduce", cluster, steps=3)
        for cluster in (pl.Local(workers=3, threads=1), in_memory(3))
    ]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].messages_sent == runs[1].messages_sent == [0, 0, 0]


def test_shared_memory_is_of_one_host():
    with refused("hosts", 2, bound=has(1, "shared-memory")):
        pl.Simulated(workers=4, link="shared-memory", hosts=2)
    with refused("link", "tcp", bound=has("pl.Link", "shared-memory")):
        pl.Simulated(workers=4, link="tcp")
