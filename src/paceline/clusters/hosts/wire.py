"""Messages between the hub and its ranks on one connection: a word and values by msgpack, and blobs of raw bytes."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgpack

from paceline.clusters.process.channel import Letter
from paceline.errors import FrameError
from paceline.links.tcp.streams import PlainStream

LETTER_BYTES = 2**36
"""Maximum size of a message. The largest messages contain a rank's outcome with the model's weights. The limit allows
eight billion weights in float64. No host has memory for a larger model with gradients and optimizer state."""

_MAGIC = b"PLL2"
_PREFIX = struct.Struct("<4sQQ")  # magic, bytes of the head, bytes of the whole message
_READ_BYTES = 2**18
_TURN_BYTES = 2**21  # bytes to read from one connection before the next connection is served
_NOTHING = memoryview(b"")


def write_letter(
    word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()
) -> list[memoryview]:
    """Return the parts of a message, in order. Refuse a message that is too large."""
    views = [memoryview(blob).cast("B") for blob in blobs]
    head = msgpack.packb([word, values or {}, [view.nbytes for view in views]])
    letter_bytes = len(head) + sum(view.nbytes for view in views)
    if letter_bytes > LETTER_BYTES:
        raise FrameError(
            f"a letter of {letter_bytes:,} bytes ({word}) cannot be sent; the most is {LETTER_BYTES:,}: "
            "return less from the program, or train a smaller model"
        )
    prefix = _PREFIX.pack(_MAGIC, len(head), letter_bytes)
    return [memoryview(prefix + head), *(view for view in views if view.nbytes)]


class LetterReader:
    """Assembles the messages of one connection. It stores at most one incomplete message."""

    def __init__(self) -> None:
        self._begin()

    def take(self, data: memoryview) -> list[Letter]:
        """Add the next bytes of the connection. Return the messages that are now complete.

        Raise FrameError if the bytes are not a message. Nothing is unpickled.
        """
        letters = []
        while data:
            section = self._sections[-1]
            count = min(len(data), self._lengths[len(self._sections) - 1] - len(section))
            section += data[:count]  # memory grows with the received data, not with the announced length
            data = data[count:]
            self.offset += count
            if self._advance():
                letters.append(Letter(self._word, self._values, self._sections[2:]))
                self._begin()
        return letters

    def _begin(self) -> None:
        self.offset = 0
        """Number of bytes that have arrived of the current message."""
        self._word = ""
        self._values: dict[str, Any] = {}
        self._lengths = [_PREFIX.size]
        self._sections = [bytearray()]
        """The prefix, the head and the blobs, as far as they have arrived."""

    def _advance(self) -> bool:
        """Begin the next section if the current one is complete. Return whether the message is complete."""
        while len(self._sections[-1]) == self._lengths[len(self._sections) - 1]:
            if len(self._sections) == 1:
                self._read_prefix()
            elif len(self._sections) == 2:
                self._read_head()
            if len(self._sections) == len(self._lengths):
                return True
            self._sections.append(bytearray())
        return False

    def _read_prefix(self) -> None:
        magic, head_bytes, letter_bytes = _PREFIX.unpack(self._sections[0])
        if magic != _MAGIC:
            raise FrameError("not a letter: wrong magic number")
        if not 0 < head_bytes <= letter_bytes <= LETTER_BYTES:
            raise FrameError(f"not a letter: its length must be at most {LETTER_BYTES:,} bytes")
        self._letter_bytes = letter_bytes
        self._lengths.append(head_bytes)

    def _read_head(self) -> None:
        try:
            word, values, lengths = msgpack.unpackb(self._sections[1], strict_map_key=False)
        except Exception as error:  # msgpack raises errors of many kinds
            raise FrameError(f"not a letter: {error}") from error
        if not isinstance(word, str) or not isinstance(values, dict) or not isinstance(lengths, list):
            raise FrameError("not a letter: it must be a word, values, and the lengths of its blobs")
        if not all(isinstance(n, int) and n >= 0 for n in lengths):
            raise FrameError("not a letter: the lengths of its blobs are not numbers")
        if len(self._sections[1]) + sum(lengths) != self._letter_bytes:
            raise FrameError("not a letter: the lengths of its blobs do not add up")
        self._word, self._values = word, values
        self._lengths += lengths


class LetterConnection:
    """Connection that sends and receives messages without blocking."""

    def __init__(self, stream: PlainStream) -> None:
        self.stream = stream
        self.reader = LetterReader()
        self._unsent: deque[memoryview] = deque()
        self._buffer = memoryview(bytearray(_READ_BYTES))

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def post(self, word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> None:
        """Append a message to the send queue, and send what fits. Blobs must not change until they are sent."""
        self._unsent.extend(write_letter(word, values, blobs))
        self.flush()

    def flush(self) -> int:
        """Send what fits. Return the number of bytes sent."""
        sent = 0
        while self._unsent:
            count = self.stream.write(_NOTHING, self._unsent[0])
            if not count:
                break
            sent += count
            self._unsent[0] = self._unsent[0][count:]
            if not self._unsent[0]:
                self._unsent.popleft()
        return sent

    def receive(self) -> tuple[int, list[Letter]]:
        """Read available data, up to a limit. Return the number of bytes, and the complete messages."""
        received, letters = 0, []
        while received < _TURN_BYTES:
            count = self.stream.read_into(self._buffer)
            if not count:
                break
            received += count
            letters += self.reader.take(self._buffer[:count])
        return received, letters

    def close(self) -> None:
        self.stream.close()
        self._unsent.clear()
