"""Messages of a device's tensors, which links cannot touch."""

import pytest
import torch

import paceline as pl
from paceline.context import ANY

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("device")]

LINKS = ["shared-memory", "tcp", pl.Link("1Gbps", "100us")]


@pytest.fixture(params=LINKS, ids=["memory", "tcp", "emulated"])
def run_on(on_device, request):
    """Runs a program on two workers with the stand-in device, and returns the result of each."""
    link = request.param

    def run(program):
        return pl.run_program(program, pl.Local(workers=2, link=link, device="standin")).results

    return lambda program: on_device(run, program)


def here(ctx, *numbers):
    """A tensor on this rank's device: the ranks are given its two units in turn."""
    return torch.tensor(numbers, device=f"standin:{ctx.rank}")


def test_a_message_arrives_on_the_receivers_device_if_it_was_sent_from_one(run_on):
    async def program(ctx):
        other = 1 - ctx.rank
        for tensor in (here(ctx, 1.5, 2.5), torch.ones(2), here(ctx, 1, 2)):
            ctx.start(ctx.net.send(other, tensor))
        came = [(await ctx.net.recv(other)).tensor for _ in range(3)]
        return [(str(tensor.device), tensor.tolist()) for tensor in came]

    for rank, came in enumerate(run_on(program)):
        where = f"standin:{rank}"
        assert came == [[where, [1.5, 2.5]], ["cpu", [1.0, 1.0]], [where, [1, 2]]]


@pytest.mark.parametrize(
    ("combine", "expected"), [("copy", [1.0, 5.0]), ("sum", [4.0, 7.0]), ("max", [3.0, 5.0])]
)
def test_what_comes_is_combined_on_the_device(run_on, combine, expected):
    async def program(ctx):
        other, own = 1 - ctx.rank, here(ctx, 0.0, 3.0, 2.0)
        sending = ctx.start(ctx.net.send(other, here(ctx, 1.0, 5.0)))
        message = await ctx.net.recv(other, own[1:], combine=combine)
        await sending
        return [own.tolist(), message.tensor.data_ptr() == own[1:].data_ptr()]

    assert run_on(program) == [[[0.0, *expected], True]] * 2


def test_a_message_that_came_early_is_combined_on_the_device(run_on):
    async def program(ctx):
        other, own = 1 - ctx.rank, here(ctx, 3.0, 2.0)
        first = ctx.start(ctx.net.send(other, here(ctx, 1.0, 5.0), tag=1))
        second = ctx.start(ctx.net.send(other, here(ctx, 7.0), tag=2))
        late = await ctx.net.recv(ANY, tag=2)
        early = await ctx.net.recv(other, own, combine="sum", tag=1)
        await first
        await second
        return [late.tensor.tolist(), str(late.tensor.device), early.tensor.tolist()]

    assert run_on(program) == [[[7.0], f"standin:{rank}", [4.0, 7.0]] for rank in range(2)]


def test_a_rank_tells_itself_on_its_device(run_on):
    async def program(ctx):
        own = here(ctx, 3.0, 2.0)
        for tag in (1, 2):
            await ctx.net.send(ctx.rank, own, tag=tag)
        own.zero_()
        alone = (await ctx.net.recv(ctx.rank, tag=1)).tensor
        await ctx.net.recv(ctx.rank, own, combine="sum", tag=2)
        return [str(alone.device), alone.tolist(), own.tolist()]

    assert run_on(program) == [[f"standin:{rank}", [3.0, 2.0], [3.0, 2.0]] for rank in range(2)]


def test_a_tensor_may_be_overwritten_when_its_sending_is_detached(run_on):
    async def program(ctx):
        other, own = 1 - ctx.rank, here(ctx, *range(100_000))
        sending = ctx.start(ctx.net.send(other, own))
        await sending.detach()
        own.zero_()
        came = (await ctx.net.recv(other)).tensor
        return [str(came.device), bool((came == torch.arange(100_000, device=came.device)).all())]

    assert run_on(program) == [[f"standin:{rank}", True] for rank in range(2)]


@pytest.mark.parametrize("algorithm", ["auto", "ring", "recursive-doubling", "halving-doubling"])
def test_collectives_leave_their_result_on_the_device(run_on, algorithm):
    async def program(ctx):
        own = here(ctx, 1.0, 2.0, 3.0)
        await pl.collectives.all_reduce(ctx, own, algorithm, op="mean")
        shard = await pl.collectives.reduce_scatter(ctx, here(ctx, 1, 2, 3, 4))
        await pl.collectives.barrier(ctx)
        return [own.tolist(), shard.tolist(), {str(own.device), str(shard.device)} == {f"standin:{ctx.rank}"}]

    assert run_on(program) == [[[1.0, 2.0, 3.0], [2, 4], True], [[1.0, 2.0, 3.0], [6, 8], True]]


def test_ranks_with_a_device_do_not_find_memory_the_quickest_way_but_can_use_it(on_device):
    async def program(ctx):
        own = here(ctx, 1.0, 2.0)
        await pl.collectives.all_reduce(ctx, own, "shared")
        return [ctx.net.shares_memory, own.tolist(), str(own.device)]

    results = on_device(lambda: pl.run_program(program, pl.Local(workers=2, device="standin")).results)
    assert results == [[False, [2.0, 4.0], f"standin:{rank}"] for rank in range(2)]


def test_what_a_program_returns_comes_back_from_its_device(on_device):
    async def program(ctx):
        return here(ctx, 1.0, 2.0)

    results = on_device(lambda: pl.run_program(program, pl.Local(workers=2, device="standin")).results)
    assert [(str(tensor.device), tensor.tolist()) for tensor in results] == [("cpu", [1.0, 2.0])] * 2
