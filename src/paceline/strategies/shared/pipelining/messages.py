"""Messages across a cut: one for each tensor, identified by stage, micro-batch and direction."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.context import BoundaryValues, Net

if TYPE_CHECKING:
    from torch import Tensor


def outputs_out(
    net: Net, to: int, stage: int, micro: int, crossing: BoundaryValues
) -> Iterator[Awaitable[None]]:
    """Yield the sends of a stage's outputs to the rank of the next stage."""
    tensors = [*crossing.tensors, *([] if crossing.chance is None else [crossing.chance])]
    assert len(tensors) < 2**6, "a cut with that many tensors is never chosen"
    wanted = sum(is_wanted << number for number, is_wanted in enumerate(crossing.wanted))
    header = (float(len(crossing.tensors)), float(wanted), float(crossing.chance is not None))
    for number, tensor in enumerate(tensors):
        yield net.send(to, tensor, tag=_tag(stage, micro, number), header=header)


async def receive_outputs(net: Net, source: int, stage: int, micro: int) -> BoundaryValues:
    """Receive the values that `outputs_out` sent from that stage."""
    first = await net.recv(source, tag=_tag(stage, micro, 0))
    count, wanted, has_chance = map(int, first.header)
    tensors = [first.tensor]
    for number in range(1, count + has_chance):
        message = await net.recv(source, tag=_tag(stage, micro, number))
        tensors.append(message.tensor)
    chance = tensors.pop() if has_chance else None
    return BoundaryValues(
        tuple(tensors), tuple(bool(wanted >> number & 1) for number in range(count)), chance
    )


def gradients_out(
    net: Net, to: int, stage: int, micro: int, gradients: Sequence[Tensor]
) -> Iterator[Awaitable[None]]:
    """Yield the sends of the gradients of a stage's inputs to the rank of the previous stage."""
    for number, gradient in enumerate(gradients):
        yield net.send(to, gradient, tag=_tag(stage, micro, number, back=True))


async def receive_gradients(net: Net, source: int, stage: int, micro: int, count: int) -> list[Tensor]:
    """Receive the gradients that `gradients_out` sent from that stage."""
    return [
        (await net.recv(source, tag=_tag(stage, micro, number, back=True))).tensor for number in range(count)
    ]


def _tag(stage: int, micro: int, number: int, *, back: bool = False) -> int:
    """Return a tag that is unique among messages in flight: up to 2^6 tensors, 2^13 micro-batches, 2^10 stages."""
    return ((stage % 2**10 * 2**13 + micro % 2**13) * 2 + back) * 2**6 + number
