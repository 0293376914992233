"""Letters between the hub and its ranks: a word and values by msgpack, and blobs of raw bytes beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import zmq

from paceline.clusters.channel import Letter
from paceline.errors import FrameError

__all__ = ["ASKING", "HEARING", "read_letter", "write_letter"]

ASKING, HEARING = b"ask-", b"hear-"
"""A rank has two sockets to the hub: one by which its program asks, one by which a thread hears."""


def write_letter(word: str, values: dict[str, Any] | None = None, blobs: Sequence[Any] = ()) -> list[Any]:
    """The frames of a letter."""
    return [msgpack.packb([word, values or {}]), *blobs]


def read_letter(frames: Sequence[zmq.Frame]) -> Letter:
    """What `write_letter` made; FrameError for anything else. Nothing is unpickled."""
    try:
        word, values = msgpack.unpackb(frames[0].buffer, strict_map_key=False)
    except Exception as error:  # msgpack has many ways to say no
        raise FrameError(f"not a letter: {error}") from error
    if not isinstance(word, str) or not isinstance(values, dict):
        raise FrameError("not a letter: it must be a word and values")
    return Letter(word, values, [bytearray(frame.buffer) for frame in frames[1:]])
