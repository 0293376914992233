"""Spans: what one rank did, from when to when.

A world records them while the run goes on, about 0.2 µs each, as the very bytes that a numpy array of them has.
`pack` then makes them that array, which travels to the driver as bytes, never as a pickle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigurationError, FrameError

__all__ = [
    "COMPUTING",
    "PASSES",
    "SPAN",
    "Kind",
    "Recorder",
    "SpanArray",
    "Spans",
    "pack_span",
    "pack_two_spans",
]


class Kind(IntEnum):
    """What a span was spent on. The numbers are in saved files: append, never reorder."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2
    WAIT = 3
    UPDATE = 4
    CANCELLED = 5
    EVALUATE = 6
    SLEEP = 7
    FORWARD = 8
    """Of one micro-batch in one segment of the model; so are the next two. Their peer is the micro-batch's number."""
    BACKWARD = 9
    WEIGHTS = 10
    """The gradient of the weights alone, where it does not come with that of the inputs."""

    @property
    def label(self) -> str:
        return self.name.lower()


PASSES = (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHTS)
"""The kinds that are passes over a segment: their peer is a micro-batch."""
COMPUTING = (Kind.COMPUTE, *PASSES)
"""The kinds that are computing: a whole gradient, or the model in pieces."""

SPAN = np.dtype(
    [
        ("kind", "u1"),
        ("start_s", "<f8"),
        ("end_s", "<f8"),
        ("peer", "<i4"),
        ("nbytes", "<i8"),
        ("step", "<i8"),
    ]
)
"""A span as a numpy record. A peer of -1 is none; that of a pass over a segment is its micro-batch."""

SpanArray = NDArray[np.void]

_FIELDS = "Bddiqq"  # those of SPAN, as struct names them

pack_span = struct.Struct(f"<{_FIELDS}").pack
"""The bytes of a span: kind, start_s, end_s, peer, nbytes, step."""

pack_two_spans = struct.Struct(f"<{_FIELDS}{_FIELDS}").pack
"""Two spans at once, for a world that often records a wait and what came of it: cheaper than one after the other."""

# magic, version of the format, bytes of the role's name, rank, host, number of spans
_HEADER = struct.Struct("<4sHHiiq")
_MAGIC = b"PLSP"
_VERSION = 1


class Recorder:
    """What one rank did so far."""

    __slots__ = ("host", "packed", "rank", "role")

    def __init__(self, rank: int, role: str, host: int = 0) -> None:
        self.rank = rank
        self.role = role
        self.host = host
        self.packed: list[bytes] = []
        """Spans one after another. A world in a hurry appends what `pack_span` gives."""

    def add(self, kind: int, start_s: float, end_s: float, peer: int, nbytes: int, step: int) -> None:
        self.packed.append(pack_span(kind, start_s, end_s, peer, nbytes, step))

    def pack(self) -> Spans:
        """The spans up to now, in the order in which they were recorded."""
        array = np.frombuffer(b"".join(self.packed), dtype=SPAN)
        return Spans(array, rank=self.rank, role=self.role, host=self.host)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:  # noqa: PLW1641  (arrays may be equal, but have no hash)
    """All spans of one rank, as a read-only array of dtype `SPAN`."""

    array: SpanArray
    rank: int
    role: str = "worker"
    host: int = 0

    def __post_init__(self) -> None:
        _check(self.array, self.rank)
        view = self.array.view()
        view.flags.writeable = False
        object.__setattr__(self, "array", view)

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and self.to_bytes() == other.to_bytes()

    def of(self, *kinds: Kind) -> SpanArray:
        """The spans of these kinds."""
        return self.array[np.isin(self.array["kind"], kinds)]

    def to_bytes(self) -> bytes:
        """For the way from a worker to its driver."""
        role = self.role.encode()
        header = _HEADER.pack(_MAGIC, _VERSION, len(role), self.rank, self.host, len(self.array))
        return header + role + self.array.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Spans:
        """What `to_bytes` made. Refuses any other bytes before it looks at their content."""
        role_bytes, rank, host, count = _read_header(data)
        start = _HEADER.size + role_bytes
        if len(data) != start + count * SPAN.itemsize:
            raise FrameError(
                f"{count} spans of rank {rank} do not fit {len(data)} bytes; they were cut or padded"
            )
        array = np.frombuffer(data, dtype=SPAN, count=count, offset=start)
        try:
            return cls(array, rank, data[_HEADER.size : start].decode(), host)
        except ValueError as error:
            raise FrameError(f"the spans of rank {rank} are damaged: {error}") from error


def _read_header(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < _HEADER.size:
        raise FrameError(f"spans have a header of {_HEADER.size} bytes, but got {len(data)} bytes in all")
    magic, version, role_bytes, rank, host, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or count < 0:
        raise FrameError(
            f"spans begin with {_MAGIC!r} and version {_VERSION}, but got {magic!r} and {version}"
        )
    return role_bytes, rank, host, count


def _check(array: SpanArray, rank: int) -> None:
    argument = f"spans of rank {rank}"
    if rank < 0:
        raise ConfigurationError("rank", "must be at least 0", rank, "ranks count from 0")
    if array.dtype != SPAN or array.ndim != 1:
        found = f"{array.dtype} of shape {array.shape}"
        raise ConfigurationError(
            argument, "must be a list of records of dtype SPAN", found, "use Recorder.pack"
        )
    # Written so that NaN fails too.
    lasted_s = array["end_s"] - array["start_s"]
    bad = ~((lasted_s >= 0) & (lasted_s < np.inf) & (array["kind"] < len(Kind)))
    if bad.any():
        bound = "must have a kind of Kind and finite times that do not run backwards"
        raise ConfigurationError(argument, bound, array[bad][0].item(), "mend the world that recorded it")
