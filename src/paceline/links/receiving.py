"""The operation that `recv` of any link returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from paceline.context import ANY, Combine, Message
from paceline.errors import FrameError, MismatchError
from paceline.links import clock
from paceline.links.frames import Header, dtype_name
from paceline.links.operation import Activity, Operation, Waiter
from paceline.model.devices import host_empty
from paceline.model.sums import combine_into

TAG_MASK = 2**32 - 1
"""Bits of the strategy's own tag. The higher bits identify the group and mark collectives."""


class Inbox(Protocol):
    """The port where a receive is posted."""

    rank: int
    others: tuple[int, ...]
    device: torch.device | None
    """Device for messages that were sent from a device, if no tensor is given. None to leave them in host memory."""

    def post(self, operation: RecvOperation) -> None: ...
    def pump(self, operation: RecvOperation) -> None: ...
    def forget(self, operation: RecvOperation) -> None: ...


class RecvOperation(Operation[Message]):
    """Receives one tensor."""

    __slots__ = (
        "_inbox",
        "_then",
        "began_s",
        "begun",
        "combine",
        "ended_s",
        "found_s",
        "header",
        "into",
        "positions",
        "received",
        "source",
        "tag",
        "target",
    )

    doing = Activity.receive

    def __init__(
        self,
        waiter: Waiter,
        inbox: Inbox,
        source: int,
        into: Tensor | None,
        combine: Combine,
        tag: int,
        then: Callable[[RecvOperation], None],
    ) -> None:
        super().__init__(waiter)
        self._inbox = inbox
        self._then = then
        self.source = source
        self.into = into
        self.combine: str = combine
        self.tag = tag
        self.received = 0
        self.header: Header | None = None
        self.begun = False
        self.began_s = 0.0
        self.positions: dict[int, int] | None = None
        """Position of each rank in the group. The message names its sender by position. None to use the rank."""
        self.target: tuple[Tensor, str] | None = None
        """Target tensor on a device, and how to combine the message with it. `into` is then a buffer in host
        memory."""
        self.found_s = 0.0
        self.ended_s = math.inf  # on an emulated link: time at which the port has carried the message

    def begin(self) -> None:
        """Post the receive. This happens when it is awaited or started, not when it is created."""
        self.begun = True
        self.began_s = clock.now()
        self._inbox.post(self)

    def poll(self) -> bool:
        if not self.done:
            if not self.begun:
                self.begin()
            if not self.done:
                self._inbox.pump(self)
        return self.done

    def cancel(self) -> None:
        if not self.done:
            if self.begun:
                self._inbox.forget(self)
            super().cancel()

    def awaited(self) -> tuple[int, ...]:
        return (self.source,) if self.source != ANY else self._inbox.others

    def takes_own(self) -> bool:
        return self.source == ANY

    def progress(self) -> int:
        return 0 if self.header is None else 1 + self.received

    def __str__(self) -> str:
        return f"receive from {'any rank' if self.source == ANY else f'rank {self.source}'}"

    def wants(self, source: int, tag: int) -> bool:
        """Return whether this operation accepts a message with this tag from this rank."""
        return self.tag == tag and self.source in (source, ANY)

    def open(self, source: int, header: Header) -> None:
        """Take a message that matches this operation, and check that it fits."""
        self.source = source
        self.header = header
        self.found_s = clock.now()
        if self.into is None:
            self.into = torch.empty(header.shape, dtype=header.dtype)
            self.combine = "copy"
        elif self.into.dtype != header.dtype or self.into.shape != header.shape:
            sent = f"{dtype_name(header.dtype)}{list(header.shape)}"
            expected = f"{dtype_name(self.into.dtype)}{list(self.into.shape)}"
            error = MismatchError(source, sent, self._inbox.rank, expected)
            self.fail(error.about(dtype_name(header.dtype), header.numbers))
        elif not self.into.is_contiguous():
            self.fail(FrameError("a tensor to receive into must be contiguous"))

    def stage(self) -> None:
        """Allocate a host buffer if the target is on a device: links access only host memory."""
        assert self.into is not None
        self.target = self.into, self.combine
        self.into, self.combine = host_empty(tuple(self.into.shape), self.into.dtype), "copy"

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True

    def close(self) -> None:
        """Finish: the whole message is in `into`."""
        assert self.header is not None
        assert self.into is not None
        source = self.source if self.positions is None else self.positions[self.source]
        tensor = self.into
        if self.target is not None:
            tensor, combine = self.target
            combine_into(tensor, self.into.to(tensor.device), combine)
        elif self.header.on_device and self._inbox.device is not None:
            tensor = self.into.to(self._inbox.device)
        self.result = Message(source, self.header.tag & TAG_MASK, tensor, self.header.numbers)
        self.done = True
        self._then(self)
