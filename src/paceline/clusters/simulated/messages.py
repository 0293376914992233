"""Messages of the simulation: send and receive.

A simulation spends most of its time here, so there are few helper functions: a function call costs as much as its
work.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from paceline.clusters.simulated.process import Event, Waiter
from paceline.context import ANY, Combine, Message
from paceline.errors import MismatchError
from paceline.links.receiving import TAG_MASK
from paceline.model.sums import combine_into
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE, pack_span, pack_two_spans

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.clusters.simulated.context import SimulatedContext

# Plain integers: reading an enumeration member is slower.
_SEND, _RECEIVE, _WAIT = int(Kind.SEND), int(Kind.RECEIVE), int(Kind.WAIT)

# Same as calling the NamedTuple, but twice as fast: it skips a Python function.
_new_tuple = tuple.__new__


class SendEvent(Event[None]):
    """A message in flight. Done when the sender's port has carried it."""

    __slots__ = (
        "_context",
        "_ended",
        "begins_s",
        "card_s",
        "carry_s",
        "delivered_s",
        "ends_s",
        "header",
        "message",
        "nbytes",
        "source",
        "start_s",
        "tag",
        "tensor",
        "to",
    )

    # Set when it is sent.
    start_s: float
    """Time at which it enters its sender's port."""
    ends_s: float
    """Time at which it has left that port."""
    carry_s: float
    """How long each port carries it."""
    begins_s: float
    """Time at which it enters its receiver's port."""
    card_s: float
    """Time at which the network card of the receiver's host has carried it. 0 if the card is never a bottleneck."""
    delivered_s: float
    """Time at which it has arrived completely."""
    message: int
    """Id in the spans of both ends."""

    def __init__(
        self, context: SimulatedContext, to: int, tensor: Tensor, tag: int, header: tuple[float, ...]
    ) -> None:
        self._ended = self.started = False
        self.error = self.waiter = self.result = None
        self.card_s = 0.0
        self._context = context
        self.source = context.rank
        self.to = to
        self.tensor = tensor
        if tensor is context.blank:
            self.nbytes = context.blank_nbytes
        else:
            self.nbytes = tensor.nbytes
            if tensor.is_meta:
                context.blank, context.blank_nbytes = tensor, self.nbytes
        self.tag = tag
        self.header = header

    def start(self) -> None:
        context, tensor = self._context, self.tensor
        if tensor is not context.blank and not tensor.is_meta:
            self.tensor = tensor.clone()  # the sender may overwrite it before the message is delivered
        if self.to == self.source:
            self._deliver_here()
            return
        context.network.post(self)
        outcome = context.outcome
        outcome.bytes_sent += self.nbytes
        outcome.messages_sent += 1
        self.message = message = context.next_message()
        context.record_packed(
            pack_span(_SEND, self.start_s, self.ends_s, self.to, self.nbytes, context.step, message)
        )

    def _deliver_here(self) -> None:
        """Deliver a message between two programs of one rank. It takes no time and is not counted."""
        now_s = self._context.kernel.now
        self.start_s = self.begins_s = self.ends_s = self.delivered_s = now_s
        self.message = NO_MESSAGE
        self._context.box.deliver(self)

    # The end is known from the start, so a call is scheduled only if a process waits for the end.

    @property
    def done(self) -> bool:
        return self._ended or (self.started and self.ends_s <= self._context.kernel.now)

    @done.setter
    def done(self, done: bool) -> None:
        self._ended = done

    def __await__(self) -> Generator[Event[None], None, None]:
        if not self.started:
            self.started = True
            self.start()
        kernel = self._context.kernel
        if self.ends_s > kernel.now and not self._ended and not kernel.skip_to(self.ends_s):
            if self.waiter is None:  # the first waiter schedules the end of the event
                kernel.at(self.ends_s, kernel.finish, self)
            yield self
        if self.error is not None:
            raise self.error

    def park(self, waiter: Waiter) -> None:
        if self.waiter is None:
            self._context.kernel.at(self.ends_s, self._context.kernel.finish, self)
        super().park(waiter)

    def __str__(self) -> str:
        return f"send to rank {self.to}"


class RecvEvent(Event[Message]):
    """Done when the message has arrived."""

    __slots__ = ("_combine", "_context", "_into", "_positions", "began_s", "source", "tag")

    began_s: float
    """Time at which the message was requested from the mailbox."""

    def __init__(
        self,
        context: SimulatedContext,
        source: int,
        into: Tensor | None,
        combine: Combine,
        tag: int,
        positions: dict[int, int] | None = None,
    ) -> None:
        """Create a receive. `positions` maps ranks to positions in a group. None for the group of all ranks."""
        self.done = self.started = False
        self.error = self.waiter = None
        self._context = context
        self._into = into
        self._combine = combine
        self._positions = positions
        self.source = source
        self.tag = tag

    def start(self) -> None:
        self._context.box.ask(self)

    def withdraw(self) -> None:
        self._context.box.forget(self)

    def receive(self, packet: SendEvent) -> None:
        context = self._context
        kernel, step = context.kernel, context.step
        began_s, begins_s = self.began_s, packet.begins_s
        source, message = packet.source, packet.message
        if begins_s > began_s:
            context.record_packed(
                pack_two_spans(
                    _WAIT, began_s, begins_s, source, 0, step, message,
                    _RECEIVE, begins_s, kernel.now, source, packet.nbytes, step, message,
                )
            )  # fmt: skip
        else:
            context.record_packed(
                pack_span(_RECEIVE, began_s, kernel.now, source, packet.nbytes, step, message)
            )
        tensor, into, tag = packet.tensor, self._into, self.tag
        if into is not None:
            if tensor is not into and (
                tensor is not context.blank_received or into is not context.blank_landing
            ):
                try:
                    self._combine_into(packet, into)
                except Exception as error:  # of the receiver: it is raised there, not in the kernel
                    self.error = error
            tensor = into
        if self._positions is not None:
            source, tag = self._positions[source], tag & TAG_MASK
        self.result = _new_tuple(Message, (source, tag, tensor, packet.header))
        kernel.finish(self)

    def _combine_into(self, packet: SendEvent, into: Tensor) -> None:
        context, tensor = self._context, packet.tensor
        if into.dtype != tensor.dtype or into.shape != tensor.shape:
            self.error = _mismatch(packet, context.rank, into)
        elif into.is_meta:
            context.blank_received, context.blank_landing = tensor, into
        else:
            combine_into(into, tensor, self._combine)

    def __str__(self) -> str:
        return f"receive from {'any rank' if self.source == ANY else f'rank {self.source}'}"


def _mismatch(packet: SendEvent, receiver: int, into: Tensor) -> MismatchError:
    sent, expected = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (packet.tensor, into))
    dtype = str(packet.tensor.dtype).removeprefix("torch.")
    return MismatchError(packet.source, sent, receiver, expected).about(dtype, packet.header)
