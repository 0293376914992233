"""The words that a schedule is written in.

A schedule is what ONE rank of a group does, as data: a tuple of rounds, each a tuple of steps that may run at the
same time. The data of a collective is one flat tensor, cut into `chunks` nearly equal pieces; a step names the half-open
range of pieces that it touches. Ranks in a schedule are positions in the group, 0 to size - 1.

Within one round no step may write what another step reads or writes; the validator refuses a schedule that does.
`Buffer.SCRATCH` is a second tensor of the same layout for algorithms that need the old value and the new.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Buffer", "Chunks", "Copy", "Recv", "Reduce", "Round", "Schedule", "Send", "Step", "chunk_bounds"]


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


Step = Send | Recv | Reduce | Copy
Round = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one rank does, and into how many chunks every rank of its group cuts the data."""

    chunks: int
    rounds: tuple[Round, ...]


def chunk_bounds(length: int, chunks: int) -> list[int]:
    """Where each chunk begins, and at the end `length`: chunk i is `bounds[i]:bounds[i + 1]`.

    The first `length % chunks` chunks are one element longer than the others.
    """
    size, longer = divmod(length, chunks)
    return [i * size + min(i, longer) for i in range(chunks + 1)]
