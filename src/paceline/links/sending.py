"""The operation that `send` of any link returns, and its queue."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from paceline.errors import PeerLost
from paceline.links import clock
from paceline.links.operation import Activity, Operation, Waiter
from paceline.model.devices import host_copy

_MOMENT_S = 20e-6
_PATIENCE_S = 30.0  # a reader that needs more seconds to copy one message is dead or stopped


class SendOperation(Operation[None]):
    """Sends one tensor."""

    __slots__ = (
        "_outbox",
        "_then",
        "address",
        "began_s",
        "begins_s",
        "begun",
        "ended_s",
        "nbytes",
        "number",
        "numbers",
        "on_device",
        "sent",
        "tag",
        "tensor",
        "to",
    )

    doing = Activity.send

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
        self.number = -1
        """Counts the messages that this rank sends. Set by the port."""
        self.begun = False
        self.sent = -1  # bytes of the payload; -1 if not even the header was sent
        self.nbytes = 0
        self.began_s = 0.0
        self.begins_s = 0.0  # on an emulated link: time at which the message begins to arrive
        self.ended_s = math.inf  # on an emulated link: time at which the port has carried the message
        self.result = None

    def begin(self) -> None:
        """Enter the queue. This happens when it is awaited or started, not when it is created."""
        self.begun = True
        self.began_s = clock.now()
        self._settle_tensor()
        self._outbox.queue.append(self)

    def _settle_tensor(self) -> None:
        self.on_device = not self.tensor.is_cpu
        if self.on_device:  # links access only host memory
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
        """Remove the message, or finish it: a receiver must not get a partial message, or one that changes."""
        until_s = time.monotonic() + _PATIENCE_S
        while not self._outbox.withdraw(self):
            if time.monotonic() > until_s:
                raise PeerLost(self.to, f"it has been reading one message for {_PATIENCE_S:g} s", str(self))
            time.sleep(_MOMENT_S)

    def detach(self) -> DetachOperation:
        return DetachOperation(self)

    def try_detach(self) -> bool:
        """Continue from a copy. Return whether the tensor may be overwritten.

        If the result is False, the receiver is reading the tensor in place. Call this again later.
        """
        if not self.poll():
            self.done = self._outbox.detach(self)
        return self.done

    def copy(self) -> SendOperation:
        """Return the same message with the same progress, sent from a copy of the tensor."""
        own = self.tensor.clone()
        twin = SendOperation(self.waiter, self._outbox, self.to, own, self.tag, self.numbers, self._then)
        twin.begun = True
        twin._settle_tensor()
        twin.sent, twin.nbytes, twin.began_s = self.sent, self.nbytes, self.began_s
        twin.begins_s, twin.on_device, twin.number = self.begins_s, self.on_device, self.number
        return twin

    def close(self) -> None:
        """Finish: the whole message has been sent."""
        self.done = True
        self._then(self)

    def awaited(self) -> tuple[int, ...]:
        return (self.to,)

    def due_s(self) -> float:
        return self._outbox.resumes_s()

    def __str__(self) -> str:
        return f"send to rank {self.to}"


class DetachOperation(Operation[None]):
    """Done when the tensor of a send may be overwritten, or when its receiver is lost."""

    __slots__ = ("_sending",)

    doing = Activity.send

    def __init__(self, sending: SendOperation) -> None:
        super().__init__(sending.waiter)
        self._sending = sending
        self.result = None

    def poll(self) -> bool:
        self.done = self.done or self._sending.try_detach() or self.waiter.is_lost(self._sending.to)
        return self.done

    def awaited(self) -> tuple[int, ...]:
        return self._sending.awaited()

    def __str__(self) -> str:
        return f"revoking the message that rank {self._sending.to} is reading"


class SendQueue:
    """Messages that wait to be sent to one rank, in order."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[SendOperation] = deque()

    def resumes_s(self) -> float:
        """Return when a link that holds messages back carries them again, on the run's clock."""
        return math.inf

    def pump(self) -> None:
        """Send as much of the queued messages as there is room for. Close each one that is sent completely."""
        queue = self.queue
        while queue:
            operation = queue[0]
            if not self._write(operation):
                return
            queue.popleft()
            operation.close()

    def withdraw(self, operation: SendOperation) -> bool:
        """Remove a message. If it has begun, finish it from a copy: the receiver cannot use a partial message."""
        if operation.sent >= 0:
            return self.detach(operation)
        self.queue.remove(operation)
        return True

    def detach(self, operation: SendOperation) -> bool:
        """Continue from a copy, so that the sender need not wait. Return False if it is being read in place."""
        rest = self.queue[self.queue.index(operation)] = operation.copy()
        rest.waiter.start(rest)
        return True

    def _write(self, operation: SendOperation) -> bool:
        """Send as much as there is room for. Return whether the message is complete."""
        raise NotImplementedError
