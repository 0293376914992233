"""Shared memory of ranks, in every world."""

import pytest
import torch
from tasks import numbers


def test_a_window_is_memory_that_all_ranks_see(run_on):
    async def program(ctx):
        window = ctx.net.window("board", rows=ctx.net.size, like=torch.zeros(5))
        window.tensor[ctx.rank] = ctx.rank + 1.0
        await window.barrier()
        return window.tensor.sum(1)

    for seen in run_on(3, program):
        assert seen.tolist() == [5, 10, 15]


def test_windows_of_two_names_or_groups_are_two(run_on):
    async def program(ctx):
        like = torch.zeros(1)
        both = ctx.net.split((0, 1)).window("a", rows=1, like=like)
        other = ctx.net.split((0, 1)).window("b", rows=1, like=like)
        own = ctx.net.split((ctx.rank,)).window("a", rows=1, like=like)
        own.tensor.fill_(7.0 + ctx.rank)
        if ctx.rank == 0:
            both.tensor.fill_(1)
            other.tensor.fill_(2)
        await both.barrier()
        return [both.tensor.item(), other.tensor.item(), own.tensor.item()]

    assert run_on(2, program) == [[1, 2, 7], [1, 2, 8]]


def test_nobody_passes_a_barrier_before_the_last_has_come(run_on):
    async def program(ctx):
        window = ctx.net.window("board", rows=1, like=torch.zeros(ctx.net.size, dtype=torch.int64))
        seen = []
        for visit in range(1, 30):
            if ctx.rank == visit % 3:
                await ctx.sleep(0.0005)
            window.tensor[0, ctx.rank] = visit
            await window.barrier()
            seen.append(int(window.tensor.min()) >= visit)
        return all(seen)

    assert run_on(3, program) == [True] * 3


@pytest.mark.parametrize("combine", ["sum", "max", "min"])
def test_a_window_is_reduced_in_the_order_of_the_rows_given(run_on, combine):
    async def program(ctx):
        window = ctx.net.window("board", rows=3, like=torch.zeros(7))
        window.tensor[ctx.rank] = numbers(7, seed=ctx.rank, dtype=torch.float32)
        await window.barrier()
        into = torch.zeros(4)
        await window.reduce(slice(2, 6), [2, 0, 1], into, combine=combine)
        return into

    functions = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
    zero, one, two = (numbers(7, seed=seed, dtype=torch.float32)[2:6] for seed in range(3))
    expected = functions[combine](functions[combine](two, zero), one)
    assert all(torch.equal(result, expected) for result in run_on(3, program))
