"""A strategy with a message that must make progress while its sender computes."""

import torch
from tasks import numbers

from paceline.errors import Cancelled


class SendsAsItComputes:
    """Rank 0 computes until rank 1 has its message. It never ends if the message makes no progress meanwhile."""

    def __init__(self, count):
        self.count = count

    def roles(self, workers):
        return ("worker",) * workers

    async def worker(self, ctx):
        tensor = numbers(self.count, dtype=torch.float32)
        if ctx.rank:
            assert (await ctx.net.recv(0)).tensor.equal(tensor)
            await ctx.net.send(0, torch.empty(0))
            return
        sending = ctx.start(ctx.net.send(1, tensor))
        computing = ctx.model.compute(ctx.batch_of(0, 0))

        async def cancels():
            await ctx.net.recv(1)
            computing.cancel()

        ctx.start(cancels())
        try:
            await computing
        except Cancelled:
            await sending
