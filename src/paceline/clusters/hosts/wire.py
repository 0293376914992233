"""Letters between the hub and its ranks: a word and values by msgpack, and blobs of raw bytes beside them.

A letter goes in pieces of kilobytes, each a message of its own. So no socket has to take more than a piece at once, and
only a reader, who knows by its credentials whose pieces they are, ever keeps more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import zmq

from paceline.clusters.process.channel import Letter
from paceline.errors import FrameError

__all__ = ["ASKING", "HEARING", "LETTER_BYTES", "LetterReader", "limit_intake", "write_letter"]

ASKING, HEARING = b"ask-", b"hear-"
"""A rank has two sockets to the hub: one by which its program asks, one by which a thread hears."""

LETTER_BYTES = 2**36
"""The most that a letter may hold. The largest hold a rank's outcome with the model's weights. There is room for
eight thousand million weights in float64: with gradient and optimizer state, no host has memory for more."""

_PIECE_BYTES = 2**16  # a stranger can make a socket keep so much for each connection
_SEAL_BYTES = 64  # what encryption adds to a message: 33, and some room
_UNREAD_PIECES = 16  # of one sender; further ones wait at the sender
_MAGIC = b"PLL1"
_PREFIX = struct.Struct(
    "<4sQQQ"
)  # magic, bytes of the letter's head, of the whole letter, of what came before


def limit_intake(socket: zmq.Socket[bytes]) -> None:
    """Limit a socket, before it is bound or connected, to messages of a piece's size and to a few unread ones."""
    socket.maxmsgsize = _PREFIX.size + _PIECE_BYTES + _SEAL_BYTES
    socket.rcvhwm = _UNREAD_PIECES


def write_letter(
    word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()
) -> Iterator[bytes]:
    """The pieces of a letter, in order. A letter that is too large is refused before any is sent."""
    views = [memoryview(blob).cast("B") for blob in blobs]
    head = msgpack.packb([word, values or {}, [view.nbytes for view in views]])
    letter_bytes = len(head) + sum(view.nbytes for view in views)
    if letter_bytes > LETTER_BYTES:
        raise FrameError(
            f"a letter of {letter_bytes:,} bytes ({word}) cannot be sent; the most is {LETTER_BYTES:,}: "
            "return less from the program, or train a smaller model"
        )
    offset = 0
    for section in (memoryview(head), *views):
        for start in range(0, section.nbytes, _PIECE_BYTES):
            body = section[start : start + _PIECE_BYTES]
            yield b"".join((_PREFIX.pack(_MAGIC, len(head), letter_bytes, offset), body))
            offset += body.nbytes


class LetterReader:
    """Puts the letters of one sender together. It keeps one at a time, as far as that has come."""

    def __init__(self) -> None:
        self._drop()

    def take(self, piece: memoryview) -> Letter | None:
        """The letter that this piece is the last of.

        FrameError if it is not the next piece of a letter: then what had come of that letter is dropped.
        Nothing is unpickled.
        """
        try:
            self._add(piece)
        except FrameError:
            self._drop()
            raise
        if self.offset < self._claim[1]:
            return None
        letter = Letter(self._word, self._values, self._sections[1:])
        self._drop()
        return letter

    def _drop(self) -> None:
        self._claim = (0, 0)
        """The bytes of the head and of the whole letter, as each of its pieces has to say."""
        self.offset = 0
        """How much has come of the letter that has begun."""
        self._word = ""
        self._values: dict[str, Any] = {}
        self._lengths: list[int] = []
        self._sections: list[bytearray] = []
        """The head and the blobs."""

    def _add(self, piece: memoryview) -> None:
        if len(piece) <= _PREFIX.size:
            raise FrameError("a piece of nothing")
        magic, *claim, offset = _PREFIX.unpack_from(piece)
        if magic != _MAGIC:
            raise FrameError("not a piece of a letter")
        if offset == 0:  # whatever had begun before will never end: its sender has lost its connection
            self._begin(*claim)
        elif (*claim, offset) != (*self._claim, self.offset):
            raise FrameError("a piece out of turn")
        self._fill(piece[_PREFIX.size :])

    def _begin(self, head_bytes: int, letter_bytes: int) -> None:
        if not 0 < head_bytes <= letter_bytes <= LETTER_BYTES:
            raise FrameError(f"a letter of more than {LETTER_BYTES:,} bytes, or none")
        self._drop()
        self._claim = (head_bytes, letter_bytes)
        self._lengths, self._sections = [head_bytes], [bytearray()]

    def _fill(self, body: memoryview) -> None:
        section = self._sections[-1]
        if len(section) + len(body) > self._lengths[len(self._sections) - 1]:
            raise FrameError("a piece of a wrong length")
        section += body  # memory grows with what has come, not with what the sender announces
        self.offset += len(body)
        if self.offset == self._claim[0]:
            self._read_head()
        while len(self._sections) < len(self._lengths) and self._is_full():
            self._sections.append(bytearray())

    def _is_full(self) -> bool:
        return len(self._sections[-1]) == self._lengths[len(self._sections) - 1]

    def _read_head(self) -> None:
        try:
            word, values, lengths = msgpack.unpackb(self._sections[0], strict_map_key=False)
        except Exception as error:  # msgpack raises errors of many kinds
            raise FrameError(f"not a letter: {error}") from error
        if not isinstance(word, str) or not isinstance(values, dict) or not isinstance(lengths, list):
            raise FrameError("not a letter: it must be a word, values, and the lengths of its blobs")
        if (
            not all(isinstance(n, int) and n >= 0 for n in lengths)
            or sum((*self._claim[:1], *lengths)) != self._claim[1]
        ):
            raise FrameError("not a letter: its blobs are not as long as it says")
        self._word, self._values = word, values
        self._lengths += lengths
