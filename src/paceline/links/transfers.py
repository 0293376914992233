"""A tensor on its way: the operations that `send` and `recv` of any link return."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from paceline.context import ANY, Combine, Message
from paceline.errors import FrameError, MismatchError, PeerLost
from paceline.links import clock
from paceline.links.frames import Header, dtype_name
from paceline.links.operation import Doing, Operation, Waiter

__all__ = ["TAG_MASK", "DetachOperation", "Inbox", "RecvOperation", "SendOperation", "SendQueue"]

TAG_MASK = 2**32 - 1
"""What of a message's tag its strategy gave. The bits above say of which group it is, and whether of a collective."""

_MOMENT_S = 20e-6
_PATIENCE_S = 30.0  # who takes longer over a message that lies in memory is dead, or stopped


class Inbox(Protocol):
    """Where a receive operation is posted."""

    rank: int
    others: tuple[int, ...]

    def post(self, operation: RecvOperation) -> None: ...
    def pump(self, operation: RecvOperation) -> None: ...
    def forget(self, operation: RecvOperation) -> None: ...


class SendOperation(Operation[None]):
    """One tensor on its way out."""

    __slots__ = (
        "_outbox",
        "_then",
        "address",
        "began_s",
        "begins_s",
        "begun",
        "ended_s",
        "nbytes",
        "numbers",
        "sent",
        "tag",
        "tensor",
        "to",
    )

    doing = Doing.send

    def __init__(
        self,
        waiter: Waiter,
        outbox: SendQueue,
        to: int,
        tensor: Tensor,
        tag: int,
        numbers: tuple[float, ...],
        then: Callable[[SendOperation], None],
    ) -> None:
        super().__init__(waiter)
        self._outbox = outbox
        self._then = then
        self.to = to
        self.tensor = tensor
        self.address = 0
        self.tag = tag
        self.numbers = numbers
        self.begun = False
        self.sent = -1  # bytes of the payload; -1: not even the header
        self.nbytes = 0
        self.began_s = 0.0
        self.begins_s = 0.0  # to arrive; told where a link is emulated
        self.ended_s = math.inf  # where a link is emulated: when its port has carried it
        self.result = None

    def begin(self) -> None:
        """Take its place in the queue: when it is awaited or started, not when it is made."""
        self.begun = True
        self.began_s = clock.now()
        self._settle_tensor()
        self._outbox.queue.append(self)

    def _settle_tensor(self) -> None:
        if not self.tensor.is_contiguous():
            self.tensor = self.tensor.contiguous()
        self.address = self.tensor.data_ptr()

    def poll(self) -> bool:
        if not self.done:
            if not self.begun:
                self.begin()
            self._outbox.pump()
        return self.done

    def cancel(self) -> None:
        if not self.done:
            if self.begun:
                self._withdraw()
            super().cancel()

    def _withdraw(self) -> None:
        """A receiver must never see half a message, or one that changes while it is read."""
        until_s = time.monotonic() + _PATIENCE_S
        while not self._outbox.withdraw(self):
            if time.monotonic() > until_s:
                raise PeerLost(self.to, f"it has been reading one message for {_PATIENCE_S:g} s", str(self))
            time.sleep(_MOMENT_S)

    def detach(self) -> DetachOperation:
        return DetachOperation(self)

    def let_go(self) -> bool:
        """Let what is not out yet go on from a copy; tell whether the tensor may be overwritten.

        It may not while the receiver is reading it where it lies: then ask again.
        """
        if not self.poll():
            self.done = self._outbox.detach(self)
        return self.done

    def copy(self) -> SendOperation:
        """The same message, as far on its way, from memory of its own."""
        own = self.tensor.clone()
        twin = SendOperation(self.waiter, self._outbox, self.to, own, self.tag, self.numbers, self._then)
        twin.begun = True
        twin._settle_tensor()
        twin.sent, twin.nbytes, twin.began_s = self.sent, self.nbytes, self.began_s
        twin.begins_s = self.begins_s
        return twin

    def close(self) -> None:
        """All of the message is out."""
        self.done = True
        self._then(self)

    def awaited(self) -> tuple[int, ...]:
        return (self.to,)

    def __str__(self) -> str:
        return f"send to rank {self.to}"


class DetachOperation(Operation[None]):
    """Done when the tensor of a send may be overwritten: at the latest when its receiver is lost."""

    __slots__ = ("_sending",)

    doing = Doing.send

    def __init__(self, sending: SendOperation) -> None:
        super().__init__(sending.waiter)
        self._sending = sending
        self.result = None

    def poll(self) -> bool:
        self.done = self.done or self._sending.let_go() or self.waiter.is_lost(self._sending.to)
        return self.done

    def awaited(self) -> tuple[int, ...]:
        return self._sending.awaited()

    def __str__(self) -> str:
        return f"taking back what rank {self._sending.to} is reading"


class SendQueue:
    """The messages that wait to go one way, in their order."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[SendOperation] = deque()

    def pump(self) -> None:
        """Let as much of the queued messages go as there is room for; close each that is out."""
        queue = self.queue
        while queue:
            operation = queue[0]
            if not self._write(operation):
                return
            queue.popleft()
            operation.close()

    def withdraw(self, operation: SendOperation) -> bool:
        """Forget a message, or finish it from a copy if it has begun: a reader cannot do with half of one."""
        if operation.sent >= 0:
            return self.detach(operation)
        self.queue.remove(operation)
        return True

    def detach(self, operation: SendOperation) -> bool:
        """Go on from a copy, so that the sender need not wait. False: it is being read where it lies."""
        rest = self.queue[self.queue.index(operation)] = operation.copy()
        rest.waiter.start(rest)
        return True

    def _write(self, operation: SendOperation) -> bool:
        """Move what there is room for; tell whether that is all of it."""
        raise NotImplementedError


class RecvOperation(Operation[Message]):
    """One tensor on its way in."""

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
    )

    doing = Doing.receive

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
        """By which the sender is called in the message. None: by its rank."""
        self.found_s = 0.0
        self.ended_s = math.inf  # where a link is emulated: when its port has carried it

    def begin(self) -> None:
        """Ask for its message: when it is awaited or started, not when it is made."""
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

    def progress(self) -> int:
        return 0 if self.header is None else 1 + self.received

    def __str__(self) -> str:
        return f"receive from {'any rank' if self.source == ANY else f'rank {self.source}'}"

    def wants(self, source: int, tag: int) -> bool:
        """Whether a message of this tag from this rank is one that this operation waits for."""
        return self.tag == tag and self.source in (source, ANY)

    def open(self, source: int, header: Header) -> None:
        """A message for this operation has been found: check that it fits."""
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

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True

    def close(self) -> None:
        """All of the message is in `into`."""
        assert self.header is not None
        assert self.into is not None
        source = self.source if self.positions is None else self.positions[self.source]
        self.result = Message(source, self.header.tag & TAG_MASK, self.into, self.header.numbers)
        self.done = True
        self._then(self)
