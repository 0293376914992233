"""The steps of a schedule.

A schedule is the work of ONE rank of a group, as data: a tuple of rounds. A round is a tuple of steps that may run at
the same time. The data of a collective is one flat tensor, cut into `chunks` nearly equal chunks. A step names the
half-open range of chunks that it reads or writes. Ranks in a schedule are positions in the group, from 0.

Within one round no step may write what another step reads or writes. The validator rejects such a schedule.
`Buffer.SCRATCH` is a second memory for algorithms that need both the old value and the new. It holds `Schedule.scratch`
tensors with the data's layout, one after the other, so that its chunk i is as long as the data's chunk i % chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Buffer(Enum):
    """The tensor of a rank that a step reads or writes."""

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
    """Receive chunks from another rank and overwrite the rank's own."""

    source: int
    chunks: Chunks


@dataclass(frozen=True, slots=True)
class Reduce:
    """Receive chunks from another rank and combine them with the rank's own: own = own + received."""

    source: int
    chunks: Chunks


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy chunks within this rank. Sends no message."""

    source: Chunks
    target: Chunks


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Combine chunks within this rank: target = target + source. Sends no message."""

    source: Chunks
    target: Chunks


Step = Send | Recv | Reduce | Copy | Accumulate
Round = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds of one rank, and the number of chunks that every rank of the group cuts the data into."""

    chunks: int
    rounds: tuple[Round, ...]
    scratch: int = 1
    """Number of tensors with the data's layout in `Buffer.SCRATCH`, if any step uses it."""


def chunk_bounds(length: int, chunks: int) -> list[int]:
    """Return the start of each chunk, followed by `length`: chunk i is `bounds[i]:bounds[i + 1]`.

    The first `length % chunks` chunks are one element longer than the others.
    """
    size, longer = divmod(length, chunks)
    return [i * size + min(i, longer) for i in range(chunks + 1)]


def chunk_slice(chunks: Chunks, bounds: Sequence[int]) -> slice:
    """Return the slice of a range of chunks in its flat buffer, given `chunk_bounds` of the data."""
    return slice(_offset(chunks.start, bounds), _offset(chunks.stop, bounds))


def _offset(chunk: int, bounds: Sequence[int]) -> int:
    copies, rest = divmod(chunk, len(bounds) - 1)
    return copies * bounds[-1] + bounds[rest]
