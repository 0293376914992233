"""A tensor on its way out: the operation that `send` of any link returns, and the queue that it waits in."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from paceline.errors import PeerLost
from paceline.links import clock
from paceline.links.operation import Doing, Operation, Waiter
from paceline.replica.devices import host_copy

__all__ = ["DetachOperation", "SendOperation", "SendQueue"]

_MOMENT_S = 20e-6
_PATIENCE_S = 30.0  # a reader that takes longer over one message in memory is dead, or stopped


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
        "on_device",
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
        self.begins_s = 0.0  # when it begins to arrive: only where a link is emulated
        self.ended_s = math.inf  # where a link is emulated: when its port has carried it
        self.result = None

    def begin(self) -> None:
        """Take its place in the queue: when it is awaited or started, not when it is made."""
        self.begun = True
        self.began_s = clock.now()
        self._settle_tensor()
        self._outbox.queue.append(self)

    def _settle_tensor(self) -> None:
        self.on_device = not self.tensor.is_cpu
        if self.on_device:  # links move the processor's memory
            self.tensor = host_copy(self.tensor)
        elif not self.tensor.is_contiguous():
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
        twin.begins_s, twin.on_device = self.begins_s, self.on_device
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
        """Forget a message, or finish it from a copy if it has begun: a reader cannot use half of one."""
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
