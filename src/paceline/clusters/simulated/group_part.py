"""One rank's part in a group operation: timed with the other parts, or run message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from paceline.clusters.simulated.process import Event, Process

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext
    from paceline.clusters.simulated.group_operation import GroupOperation
    from paceline.clusters.simulated.net import SimulatedNet
    from paceline.clusters.simulated.network import PortState

T = TypeVar("T")


class GroupPart(Event[T]):
    """One rank's part in a group operation."""

    __slots__ = (
        "before",
        "context",
        "has_claimed",
        "joined_s",
        "net",
        "number",
        "operation",
        "out_free_s",
        "process",
        "recorded",
        "tag",
    )

    joined_s: float
    number: float
    """Sequence number of joining. Parts that join at the same time have joined in this order."""
    out_free_s: float
    """When the rank's output port was free at the time of joining."""
    before: PortState
    """The rank's ports as they were before the operation. Set when the part has ended."""

    def __init__(self, context: SimulatedContext, net: SimulatedNet) -> None:
        super().__init__()
        self.context = context
        self.net = net
        self.operation: GroupOperation | None = None
        self.has_claimed = False
        """Whether this part has claimed its ports, and was timed with the others."""
        self.process: Process[None] | None = None
        """Process that runs this part message by message. None unless the operation has fallen back."""
        self.recorded: tuple[int, int, int] | None = None
        """Position of the recorded spans, bytes and messages of a part that has ended. None until then."""

    def join(self) -> None:
        """Join the operation. It is numbered now, not when created: parts are matched by the order of their start."""
        group, operations = self.net.group, self.context.world.operations
        self.joined_s = self.context.kernel.now
        self.tag = group.next_collective()
        key = group.base | self.tag
        operation = operations.get(key)
        if operation is None:
            operation = operations[key] = self.new_operation()
        self.operation = operation
        if len(operation.parts) + 1 == group.size:
            del operations[key]
        operation.join(group.rank, self)

    def new_operation(self) -> GroupOperation:
        """Return the operation that this part belongs to."""
        raise NotImplementedError

    async def run_messages(self) -> None:
        """Run this part message by message."""
        raise NotImplementedError

    def record_end(self, spans: bytes, nbytes: int, messages: int) -> None:
        """Record the spans and the traffic of this part."""
        packed, outcome = self.context.recorder.packed, self.context.outcome
        self.recorded = len(packed), nbytes, messages
        packed.append(spans)
        outcome.bytes_sent += nbytes
        outcome.messages_sent += messages

    def remove_records(self) -> None:
        """Remove the records. They are replaced by those of the single messages."""
        assert self.recorded is not None
        place, nbytes, messages = self.recorded
        self.context.recorder.packed[place] = b""
        self.context.outcome.bytes_sent -= nbytes
        self.context.outcome.messages_sent -= messages

    def move_records(self, place: int) -> None:
        """Move spans from `place` on to the position of the removed spans, before the spans of later activities."""
        assert self.recorded is not None
        packed = self.context.recorder.packed
        packed[self.recorded[0]] = b"".join(packed[place:])
        del packed[place:]

    def run_singly(self, _: object = None) -> None:
        """Start the process that runs this part message by message, if it is not running."""
        if self.process is not None:
            return
        kernel = self.context.kernel
        self.process = self.context.new_process(self._live())
        kernel.unskippable += 1
        self.process.resume()
        kernel.unskippable -= 1

    async def _live(self) -> None:
        try:
            await self.run_messages()
        except Exception as error:
            self.error = error
        self.context.kernel.after_replay(self._end)

    def _end(self) -> None:
        if self.done:
            return
        if self.error is not None and self.waiter is None and self.context.program is not None:
            self.context.program.interrupt(self.error)  # like an error of any background process
        self.context.kernel.finish(self)

    def withdraw(self) -> None:
        if self.operation is not None and not self.context.network.is_closed:
            self.operation.fall_back()
        if self.process is not None:
            self.process.cancel()

    def __str__(self) -> str:
        if self.process is not None:
            return str(self.process)
        assert self.operation is not None
        return self.operation.describe()
