"""A tensor on its way: the operations that `send` and `recv` of any link return."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from paceline.context import ANY, Combine, Message
from paceline.errors import FrameError, MismatchError
from paceline.links.frames import Header, dtype_name
from paceline.links.operation import Operation, Waiter

__all__ = ["COMBINE", "Inbox", "Outbox", "RecvOperation", "SendOperation"]

COMBINE: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "copy": lambda own, other, out: out.copy_(other),
    "sum": lambda own, other, out: torch.add(own, other, out=out),
    "max": lambda own, other, out: torch.maximum(own, other, out=out),
    "min": lambda own, other, out: torch.minimum(own, other, out=out),
}
_clock = time.monotonic


class Outbox(Protocol):
    """Where a send operation is queued."""

    def pump(self) -> None: ...
    def withdraw(self, operation: SendOperation) -> None: ...


class Inbox(Protocol):
    """Where a receive operation is posted."""

    rank: int
    others: tuple[int, ...]

    def pump(self, operation: RecvOperation) -> None: ...
    def forget(self, operation: RecvOperation) -> None: ...
    def received(self, operation: RecvOperation) -> None: ...


class SendOperation(Operation[None]):
    """One tensor on its way out."""

    __slots__ = ("_outbox", "address", "began_s", "nbytes", "sent", "tag", "tensor", "to", "version")

    def __init__(
        self, waiter: Waiter, outbox: Outbox, to: int, tensor: Tensor, tag: int, version: int
    ) -> None:
        super().__init__(waiter)
        self._outbox = outbox
        self.to = to
        self.tensor = tensor if tensor.is_contiguous() else tensor.contiguous()
        self.address = self.tensor.data_ptr()
        self.tag = tag
        self.version = version
        self.sent = -1  # bytes of the payload; -1: not even the header
        self.nbytes = 0
        self.began_s = _clock()
        self.result = None

    def poll(self) -> bool:
        if not self.done:
            self._outbox.pump()
        return self.done

    def cancel(self) -> None:
        """A message whose header is out has to be finished; one that has not begun is forgotten."""
        if not self.done and self.sent < 0:
            self._outbox.withdraw(self)
            super().cancel()

    def awaited(self) -> tuple[int, ...]:
        return (self.to,)

    def __str__(self) -> str:
        return f"send to rank {self.to}"


class RecvOperation(Operation[Message]):
    """One tensor on its way in."""

    __slots__ = (
        "_inbox",
        "began_s",
        "combine",
        "early",
        "found_s",
        "header",
        "into",
        "received",
        "source",
        "tag",
    )

    def __init__(
        self, waiter: Waiter, inbox: Inbox, source: int, into: Tensor | None, combine: Combine, tag: int
    ) -> None:
        super().__init__(waiter)
        self._inbox = inbox
        self.source = source
        self.into = into
        self.combine: str = combine
        self.tag = tag
        self.early = False  # True: nobody asked for this message yet; it is being kept
        self.received = 0
        self.header: Header | None = None
        self.began_s = _clock()
        self.found_s = 0.0

    def poll(self) -> bool:
        if not self.done:
            self._inbox.pump(self)
        return self.done

    def cancel(self) -> None:
        if not self.done:
            self._inbox.forget(self)
            super().cancel()

    def awaited(self) -> tuple[int, ...]:
        return (self.source,) if self.source != ANY else self._inbox.others

    def __str__(self) -> str:
        return f"receive from {'any rank' if self.source == ANY else f'rank {self.source}'}"

    def open(self, source: int, header: Header) -> None:
        """A message for this operation has been found: check that it fits."""
        self.source = source
        self.header = header
        self.found_s = _clock()
        if self.into is None:
            self.into = torch.empty(header.shape, dtype=header.dtype)
            self.combine = "copy"
        elif self.into.dtype != header.dtype or self.into.shape != header.shape:
            sent = f"{dtype_name(header.dtype)}{list(header.shape)}"
            expected = f"{dtype_name(self.into.dtype)}{list(self.into.shape)}"
            self.fail(MismatchError(source, sent, self._inbox.rank, expected))
        elif not self.into.is_contiguous():
            self.fail(FrameError("a tensor to receive into must be contiguous"))

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True

    def close(self) -> None:
        """All of the message is in `into`."""
        assert self.header is not None
        assert self.into is not None
        self.result = Message(self.source, self.header.tag, self.header.version, self.into)
        self.done = True
        if not self.early:
            self._inbox.received(self)
