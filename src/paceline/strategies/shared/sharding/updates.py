"""Every rank computes with the whole model, but updates one shard of it. The optimizer state exists once."""

from __future__ import annotations

from functools import partial

from paceline.collectives import all_gather, gradient_norm, reduce_own_shard, reduce_scatter
from paceline.collectives.coded import coded
from paceline.context import Context
from paceline.strategies.shared.buffers import follow_buffers
from paceline.strategies.shared.codec import gradient_codec


async def share_by_memory(ctx: Context) -> None:
    """Train with one copy of the parameters in the host's shared memory. Each rank reduces and updates one shard."""
    net, model = ctx.net, ctx.model
    parameters = net.window("parameters", rows=1, like=model.parameters)
    gradients = net.window("gradients", rows=net.size, like=model.gradient)
    if net.rank == 0:
        parameters.tensor[0].copy_(model.parameters)
    model.place(parameters=parameters.tensor[0], gradient=gradients.tensor[net.rank])
    shard = model.shards(net.size)[net.rank]
    own = model.gradient[shard]
    await parameters.barrier()
    async for batch in ctx.batches():
        await follow_buffers(ctx)
        await model.compute(batch, weight=batch.weight)
        await reduce_own_shard(net, gradients, shard, into=own)
        await model.apply(shard, norm=partial(gradient_norm, net, own))
        await parameters.barrier()


async def share_by_messages(ctx: Context) -> None:
    """Train with messages: the owner of a shard reduces its gradient, updates it and sends it to all ranks."""
    net, model = ctx.net, ctx.model
    shards, gradients = model.shards(net.size), coded(ctx, gradient_codec(ctx, "none"))
    # The memory stays the same. The call declares that other ranks write to it. A moving average then includes all
    # shards.
    model.place(parameters=model.parameters)
    async for batch in ctx.batches():
        await follow_buffers(ctx)
        await model.compute(batch, weight=batch.weight)
        own = await reduce_scatter(gradients, model.gradient, parts=shards)
        await model.apply(shards[net.rank], norm=partial(gradient_norm, net, own))
        await all_gather(net, model.parameters, parts=shards)
