"""Runs one rank's part of a collective, message by message, in any backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.context import Combine, Context, Net
from paceline.errors import MismatchError
from paceline.model.sums import combine_into
from paceline.schedules.collectives.collective import Collective, actions, scratch_length
from paceline.schedules.collectives.steps import Copy, Recv, Send

if TYPE_CHECKING:
    from torch import Tensor


async def interpret(
    ctx: Context,
    net: Net,
    collective: Collective,
    data: Tensor,
    *,
    combine: Combine,
    next_tag: Callable[[], int],
) -> None:
    """Run this rank's part of a collective, message by message. `data` must be flat and contiguous.

    The tag is taken at the start, not at creation: collectives are numbered in the order in which they start.
    """
    tag = next_tag()
    rank, length = net.rank, data.numel()
    header = (length,)
    extra = scratch_length(collective, rank, length)
    scratch = data.new_empty(extra) if extra else data
    try:
        for steps in actions(collective, rank, length):
            under_way = []
            for step in steps:
                part = (scratch if step.in_scratch else data)[step.where]
                if step.kind is Send:
                    under_way.append(ctx.start(net.send(step.peer, part, tag=tag, header=header)))
                elif step.peer < 0:
                    source = (scratch if step.source_in_scratch else data)[step.source]
                    combine_into(part, source, "copy" if step.kind is Copy else combine)
                else:
                    how: Combine = "copy" if step.kind is Recv else combine
                    message = net.recv(step.peer, part, combine=how, tag=tag)
                    if len(steps) <= 2:  # at most one send and one receive, so no handle is needed
                        await message
                    else:
                        under_way.append(ctx.start(message))  # type: ignore[arg-type]
            for handle in under_way:
                await handle
    except MismatchError as error:
        raise _of_whole_tensors(error, data) from None


def _of_whole_tensors(error: MismatchError, data: Tensor) -> MismatchError:
    """Return the error for whole tensors. The link compares chunks; the tensor's length is in every header."""
    if not error.numbers:
        return error
    dtype = str(data.dtype).removeprefix("torch.")
    return MismatchError(
        error.sender, f"{error.dtype}[{error.numbers[0]}]", error.receiver, f"{dtype}[{data.numel()}]"
    )
