"""The words that a schedule is written in.

A schedule is what ONE rank of a group does, as data: a tuple of rounds, each a tuple of steps that may run at
the same time. The data of a collective is one flat tensor, cut into `chunks` nearly equal pieces; a step
names the half-open range of pieces that it touches. Ranks in a schedule are positions in the group, from 0.

Within one round no step may write what another step reads or writes; the validator refuses a schedule that
does. `Buffer.SCRATCH` is a second memory for algorithms that need the old value and the new:
`Schedule.scratch` tensors of the data's layout, end to end, so that its chunk i is as long as the data's
chunk i % chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "Accumulate",
    "Buffer",
    "Chunks",
    "Copy",
    "Recv",
    "Reduce",
    "Round",
    "Schedule",
    "Send",
    "Step",
    "chunk_bounds",
    "chunk_slice",
]


class Buffer(Enum):
    """Which of a rank's two tensors a step touches."""

    DATA = "data"
    SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class Chunks:
    """The half-open range of chunks `start` to `stop` of one buffer."""

    start: int
    stop: int
    buffer: Buffer = Buffer.DATA


@dataclass(frozen=True, slots=True)
class Send:
    """Send chunks to another rank."""

    to: int
    chunks: Chunks


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive chunks from another rank and overwrite one's own."""

    source: int
    chunks: Chunks


@dataclass(frozen=True, slots=True)
class Reduce:
    """Receive chunks from another rank and combine them with one's own: own = own + received."""

    source: int
    chunks: Chunks


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy chunks from one place of this rank to another. Moves no message."""

    source: Chunks
    target: Chunks


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Combine chunks of one place of this rank into another: target = target + source. Moves no message."""

    source: Chunks
    target: Chunks


Step = Send | Recv | Reduce | Copy | Accumulate
Round = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one rank does, and into how many chunks every rank of its group cuts the data."""

    chunks: int
    rounds: tuple[Round, ...]
    scratch: int = 1
    """How many tensors of the data's layout `Buffer.SCRATCH` holds, where any step touches it."""


def chunk_bounds(length: int, chunks: int) -> list[int]:
    """Where each chunk begins, and at the end `length`: chunk i is `bounds[i]:bounds[i + 1]`.

    The first `length % chunks` chunks are one element longer than the others.
    """
    size, longer = divmod(length, chunks)
    return [i * size + min(i, longer) for i in range(chunks + 1)]


def chunk_slice(chunks: Chunks, bounds: Sequence[int]) -> slice:
    """Where a range of chunks lies in its flat buffer, given `chunk_bounds` of the data."""
    return slice(_offset(chunks.start, bounds), _offset(chunks.stop, bounds))


def _offset(chunk: int, bounds: Sequence[int]) -> int:
    copies, rest = divmod(chunk, len(bounds) - 1)
    return copies * bounds[-1] + bounds[rest]
