"""Communication for the user's code between two steps."""

from __future__ import annotations

from torch import Tensor

from paceline.loop.context import LoopContext
from paceline.loop.rendezvous import Errand

GATHER = 2**31 + 2
"""Tag of the messages. Strategies use small tags."""


def gather(value: Tensor) -> Errand:
    """Return an errand that collects the values of all workers. Their shapes may differ."""

    async def run(context: LoopContext) -> list[Tensor]:
        net, flat = context.net, value.contiguous()
        others = [worker for worker in context.workers if worker != context.rank]
        sending = [context.start(net.send(other, flat, tag=GATHER)) for other in others]
        found = {context.rank: value}
        for other in others:
            found[other] = (await net.recv(other, tag=GATHER)).tensor
        for handle in sending:
            await handle
        return [found[worker] for worker in context.workers]

    return run
