"""Spans: the activities of one rank, with start and end.

A backend records them during the run, in about 0.2 µs each, as the bytes of a numpy array. `pack` returns that array.
It is sent to the driver as bytes, never as a pickle.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ConfigurationError, FrameError


class Kind(IntEnum):
    """Activity of a span. The numbers are in saved files: append, never reorder."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2
    WAIT = 3
    UPDATE = 4
    CANCELLED = 5
    EVALUATE = 6
    SLEEP = 7
    FORWARD = 8
    """Pass of one micro-batch in one segment of the model, like the next two. `peer` is the micro-batch's number."""
    BACKWARD = 9
    WEIGHTS = 10
    """Gradients of the weights alone, if computed separately from the gradients of the inputs."""

    @property
    def label(self) -> str:
        return self.name.lower()


PASSES = (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHTS)
"""Kinds that are passes over a segment. Their peer is a micro-batch."""
COMPUTING = (Kind.COMPUTE, *PASSES)
"""Kinds that are computation: a whole gradient, or a pass over a segment."""

SPAN = np.dtype(
    [
        ("kind", "u1"),
        ("start_s", "<f8"),
        ("end_s", "<f8"),
        ("peer", "<i4"),
        ("nbytes", "<i8"),
        ("step", "<i8"),
        ("message", "<i8"),
    ]
)
"""A span as a numpy record. `peer` is -1 for none; for a pass over a segment it is the micro-batch.

`message` identifies the cause of a wait. The send, the wait and the receive of a message have the same id (see
`message_id`). The waits and receives of all ranks in a barrier or collective have the same id (see `meeting_id`).
"""

NO_MESSAGE = -1
"""Id of spans that belong to no message and no meeting."""

_NUMBER_BITS = 40
_VISIT_BITS = 30


def message_id(source: int, number: int) -> int:
    """Return the id of a message: `number` counts the messages that rank `source` sends. It is at least 0."""
    return NO_MESSAGE if number < 0 else source << _NUMBER_BITS | number


def place_number(name: str) -> int:
    """Return a number for the name of a barrier. It is the same on every rank, and the ranks need no messages."""
    return zlib.crc32(name.encode())


def meeting_id(place: int, visit: int) -> int:
    """Return the id of a meeting: a barrier, or a collective that is recorded as a whole. It is less than -1.

    `place` identifies the barrier in the run (at most 32 bits), and `visit` counts its meetings.
    """
    return -2 - (place << _VISIT_BITS | visit % (1 << _VISIT_BITS))


SPAN_WITHOUT_MESSAGE = np.dtype(SPAN.descr[:-1])
"""A span of version 1, before spans had ids."""

SpanArray = NDArray[np.void]

_FIELDS = "Bddiqqq"  # the fields of SPAN, in the notation of struct

pack_span = struct.Struct(f"<{_FIELDS}").pack
"""Return the bytes of a span: kind, start_s, end_s, peer, nbytes, step, message."""

pack_two_spans = struct.Struct(f"<{_FIELDS}{_FIELDS}").pack
"""Pack two spans at once, such as a wait and its result: cheaper than two calls."""

# magic, format version, length of the role's name, rank, host, number of spans
_HEADER = struct.Struct("<4sHHiiq")
_MAGIC = b"PLSP"
_VERSION = 2


class Recorder:
    """The spans of one rank so far."""

    __slots__ = ("host", "packed", "rank", "role")

    def __init__(self, rank: int, role: str, host: int = 0) -> None:
        self.rank = rank
        self.role = role
        self.host = host
        self.packed: list[bytes] = []
        """Packed spans in order. For speed a backend may append the result of `pack_span`."""

    def add(
        self,
        kind: int,
        start_s: float,
        end_s: float,
        peer: int,
        nbytes: int,
        step: int,
        message: int = NO_MESSAGE,
    ) -> None:
        self.packed.append(pack_span(kind, start_s, end_s, peer, nbytes, step, message))

    def pack(self) -> Spans:
        """Return the spans so far, in the order of recording."""
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
        """Return the spans of these kinds."""
        return self.array[np.isin(self.array["kind"], kinds)]

    def to_bytes(self) -> bytes:
        """Encode the spans for sending them from a worker to the driver."""
        role = self.role.encode()
        header = _HEADER.pack(_MAGIC, _VERSION, len(role), self.rank, self.host, len(self.array))
        return header + role + self.array.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Spans:
        """Decode the result of `to_bytes`. Other bytes are rejected before their content is read."""
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


def add_messages(array: SpanArray) -> SpanArray:
    """Convert spans of version 1. They get no ids, so the causes of their waits are unknown."""
    spans = np.empty(len(array), SPAN)
    for name in array.dtype.names or ():
        spans[name] = array[name]
    spans["message"] = NO_MESSAGE
    return spans


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
    # Written so that NaN fails, too.
    lasted_s = array["end_s"] - array["start_s"]
    bad = ~((lasted_s >= 0) & (lasted_s < np.inf) & (array["kind"] < len(Kind)))
    if bad.any():
        bound = "must have a kind of Kind and finite times that do not run backwards"
        raise ConfigurationError(
            argument, bound, array[bad][0].item(), "correct the cluster implementation that recorded it"
        )
