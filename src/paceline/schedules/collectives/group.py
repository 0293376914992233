"""Helpers of the algorithms: checks of ranks, and embedding a schedule into a larger group."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import ConfigurationError
from paceline.schedules.collectives.steps import Accumulate, Chunks, Copy, Recv, Reduce, Round, Send, Step


def check_group(rank: int, size: int, root: int = 0) -> None:
    """Raise an error if the group is empty, or if the rank or the root is not in it."""
    if size < 1:
        raise ConfigurationError("size", "must be at least 1", size)
    if not 0 <= rank < size:
        raise ConfigurationError("rank", f"must be from 0 to {size - 1}", rank)
    if not 0 <= root < size:
        raise ConfigurationError("root", f"must be from 0 to {size - 1}", root)


def largest_power_of_two(size: int) -> int:
    """Return the largest power of two that is at most `size`: the ranks that a pairwise exchange can use."""
    return 1 << (size.bit_length() - 1)


def embed(
    rounds: Sequence[Round], members: Sequence[int], *, width: int = 1, offset: int = 0
) -> tuple[Round, ...]:
    """Map the rounds of a small group to `members` of a larger group with finer chunks.

    Position i of the small group is rank `members[i]`. Its chunk c is the `width` chunks from `offset + c * width`.
    """

    def place(chunks: Chunks) -> Chunks:
        return Chunks(offset + chunks.start * width, offset + chunks.stop * width, chunks.buffer)

    def move(step: Step) -> Step:
        match step:
            case Send(to, chunks):
                return Send(members[to], place(chunks))
            case Recv(source, chunks):
                return Recv(members[source], place(chunks))
            case Reduce(source, chunks):
                return Reduce(members[source], place(chunks))
            case Copy(origin, target):
                return Copy(place(origin), place(target))
            case Accumulate(origin, target):
                return Accumulate(place(origin), place(target))

    return tuple(tuple(map(move, steps)) for steps in rounds)
