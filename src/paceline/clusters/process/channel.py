"""Launch channel: a socket between the driver and one process that the driver started.

A message is a word, a JSON object, and blobs of raw bytes. It may carry file descriptors.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PREFIX = struct.Struct("<I")
_MAX_FDS = 8


class ChannelClosed(Exception):  # noqa: N818
    """The process at the other end has ended."""


class ChannelStalled(ChannelClosed):
    """The process at the other end exists, but does not read, or sends only a part of a message."""


@dataclass(frozen=True, slots=True)
class Letter:
    word: str
    values: dict[str, Any] = field(default_factory=dict)
    blobs: list[bytearray] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)


class Channel:
    """One end of a launch channel."""

    def __init__(self, endpoint: socket.socket, patience_s: float | None = None) -> None:
        """Create a channel.

        `patience_s` is the longest pause of the other end within a message. None for no limit.
        """
        self.socket = endpoint
        endpoint.settimeout(patience_s)
        _open.add(self)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(
        self,
        word: str,
        values: dict[str, Any] | None = None,
        blobs: Sequence[Any] = (),
        fds: Sequence[int] = (),
    ) -> None:
        views = [memoryview(blob).cast("B") for blob in blobs]
        head = json.dumps([word, values or {}, [len(view) for view in views], len(fds)]).encode()
        data = memoryview(_PREFIX.pack(len(head)) + head)
        with self._other_end_named("with a letter unread"):
            sent = socket.send_fds(self.socket, [data], list(fds))
            for view in (data[sent:], *views):
                self._send_all(view)

    def receive(self) -> Letter:
        with self._other_end_named("in the middle of a letter"):
            prefix, fds = self._receive_prefix()
            word, values, lengths, count = json.loads(self._receive_exactly(_PREFIX.unpack(prefix)[0]))
            blobs = [self._receive_exactly(n) for n in lengths]
        if len(fds) < count:  # the kernel silently drops descriptors beyond the limit of this process
            for fd in fds:
                os.close(fd)
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (raise the limit: ulimit -n)")
        return Letter(word, values, blobs, fds)

    def close(self) -> None:
        self.socket.close()

    def _send_all(self, view: memoryview) -> None:
        while view:  # not `sendall`: its timeout applies to all bytes together
            view = view[self.socket.send(view) :]

    def _receive_prefix(self) -> tuple[bytes, list[int]]:
        data, fds = b"", []
        while len(data) < _PREFIX.size:
            more, new, _, _ = socket.recv_fds(self.socket, _PREFIX.size - len(data), _MAX_FDS)
            if not more:
                raise ChannelClosed("in the middle of a letter" if data else "between letters")
            data += more
            fds += new
        return data, fds

    def _receive_exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            n = self.socket.recv_into(view)
            if not n:
                raise ChannelClosed("in the middle of a letter")
            view = view[n:]
        return data

    @contextmanager
    def _other_end_named(self, where: str) -> Iterator[None]:
        """Convert socket errors into errors about the other end."""
        try:
            yield
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed("with a letter unread") from error
        except TimeoutError as error:
            raise ChannelStalled(f"{where}, for {self.socket.gettimeout():g} s") from error


# A child that the user forks inherits these sockets. If the child kept them open, the other end could not detect
# the end of this process.
_open: weakref.WeakSet[Channel] = weakref.WeakSet()


def _close_in_child() -> None:
    for channel in list(_open):
        channel.close()


os.register_at_fork(after_in_child=_close_in_child)


def encode(value: Any, blobs: list[Any]) -> Any:
    """Encode a value of tensors, numbers, texts, lists and dictionaries as JSON and blobs."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        blobs.append(flat.numpy())
        name = str(value.dtype).removeprefix("torch.")
        return {"tensor": len(blobs) - 1, "dtype": name, "shape": list(value.shape)}
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    if isinstance(value, dict):
        return {"dict": [[encode(k, blobs), encode(v, blobs)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [encode(item, blobs) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"a role program may return tensors, numbers, texts, lists and dictionaries, not {type(value)}"
    )


def decode(value: Any, blobs: Sequence[bytearray]) -> Any:
    """Decode the result of `encode`. Tuples become lists."""
    if isinstance(value, list):
        return [decode(item, blobs) for item in value]
    if isinstance(value, dict) and "tensor" in value:
        blob, dtype = blobs[value["tensor"]], getattr(torch, value["dtype"])
        flat = torch.frombuffer(blob, dtype=dtype) if len(blob) else torch.empty(0, dtype=dtype)
        return flat.view(value["shape"])
    if isinstance(value, dict):
        return {decode(k, blobs): decode(v, blobs) for k, v in value["dict"]}
    return value
