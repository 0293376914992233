"""Collects a model that several ranks hold together on the first of them, when the run inspects it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from paceline.clusters.rank.logbook import Logbook
from paceline.context import Net
from paceline.model.replica import Replica

_COLLECTED = 2**30  # message tags that no other message uses
_READY = 2**29


async def collect(
    log: Logbook, part: Replica, step: int, net: Net, segments: Sequence[Sequence[int]]
) -> None:
    """Collect the model after a step if it is inspected: see `paceline.context.Stages`. `part` is this rank's part."""
    if log.inspects(step):
        await _await_all(part, net)
        with log.evaluations.measuring() if net.rank == 0 else nullcontext():
            await _bring_together(part, net, segments)
    elif log.inspects(step, average=True):
        await _bring_together(part, net, segments)


async def _await_all(part: Replica, net: Net) -> None:
    """Wait until all ranks have completed the step: the others notify the first rank and wait for its request."""
    nothing = part.gradient[:0]
    if net.rank > 0:
        await net.send(0, nothing, tag=_READY)
        await net.recv(0, tag=_READY)
        return
    for rank in range(1, net.size):
        await net.recv(rank, tag=_READY)
    for rank in range(1, net.size):
        await net.send(rank, nothing, tag=_READY)


async def _bring_together(part: Replica, net: Net, segments: Sequence[Sequence[int]]) -> None:
    model = part.inspection
    if net.rank > 0:
        buffers = model.held_buffers()
        await net.send(0, model.held_parameters(), tag=_COLLECTED, header=(float(len(buffers)),))
        for number, buffer in enumerate(buffers):
            await net.send(0, buffer, tag=_COLLECTED + 1 + number)
        return
    model.put(segments[0], model.held_parameters(), model.held_buffers())
    for rank in range(1, net.size):
        message = await net.recv(rank, tag=_COLLECTED)
        count = int(message.header[0])
        others = [await net.recv(rank, tag=_COLLECTED + 1 + number) for number in range(count)]
        stage, position = divmod(rank, net.size // len(segments))
        model.put(segments[stage], message.tensor, [each.tensor for each in others], position)
