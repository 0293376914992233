"""Programs that create operations in one order and await them in another. Only the second order counts, in every
world."""

import torch

from paceline.schedules.collectives.collective import Collective


async def receives_in_the_other_order(ctx):
    """The first rank sends 1 and 2 to each other rank, which returns the value that it awaited first."""
    if ctx.rank == 0:
        for to in range(1, ctx.net.size):
            for number in (1.0, 2.0):
                await ctx.net.send(to, torch.tensor([number]))
        return None
    made_first, made_second = ctx.net.recv(0), ctx.net.recv(0)
    return [(await made_second).tensor.item(), (await made_first).tensor.item()]


async def makes_rings_in_its_own_order(ctx):
    """The first rank creates two rings, and the others create them in the opposite order.

    All await them in the same order.
    """
    ring = Collective("all-reduce", "ring", ctx.net.size)
    ones, tens = torch.tensor([1.0]), torch.tensor([10.0])
    if ctx.rank == 0:
        of_ones = ctx.net.execute(ring, ones, combine="sum")
        of_tens = ctx.net.execute(ring, tens, combine="sum")
    else:
        of_tens = ctx.net.execute(ring, tens, combine="sum")
        of_ones = ctx.net.execute(ring, ones, combine="sum")
    await of_ones
    await of_tens
    return [ones.item(), tens.item()]
