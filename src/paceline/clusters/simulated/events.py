"""Operations of the simulation besides messages: computing and timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from paceline.clusters.simulated.process import Event
from paceline.context import Batch
from paceline.costs.prices import Pass, Work
from paceline.trace import Kind
from paceline.trace.spans import NO_MESSAGE, pack_span

if TYPE_CHECKING:
    from paceline.clusters.simulated.context import SimulatedContext

T = TypeVar("T")

# Plain integers: reading an enumeration member is slower.
_COMPUTE, _CANCELLED = int(Kind.COMPUTE), int(Kind.CANCELLED)
_GRADIENT = Work.GRADIENT  # faster to read here than in its class


class Timer(Event[None]):
    """Done after some virtual seconds."""

    __slots__ = ("_context", "_seconds")

    def __init__(self, context: SimulatedContext, seconds: float) -> None:
        super().__init__()
        self._context = context
        self._seconds = seconds
        self.result = None

    def start(self) -> None:
        kernel = self._context.kernel
        kernel.at(kernel.now + self._seconds, self._ring, None)

    def _ring(self, _: None) -> None:
        if not self.done:
            self._context.kernel.finish(self)

    def __str__(self) -> str:
        return "sleep"


class WorkTimer(Timer):
    """Done after some virtual seconds of work. Takes longer while other ranks use the same cores."""

    __slots__ = ()

    def start(self) -> None:
        cores = self._context.world.cores
        if cores is None:
            super().start()
        else:
            cores.begin(self, self._seconds, self._ring)

    def __str__(self) -> str:
        return "compute"


class ProgressEvent(Event[None]):
    """Done when a computation has done some seconds of its work."""

    __slots__ = ("_computation", "_context", "_seconds")

    def __init__(self, context: SimulatedContext, computation: ComputeEvent, seconds: float) -> None:
        super().__init__()
        self._context = context
        self._computation = computation
        self._seconds = seconds
        self.result = None

    def start(self) -> None:
        cores = self._context.world.cores
        assert cores is not None
        cores.mark(self._computation, self._seconds, self._reach)

    def _reach(self, _: object) -> None:
        if not self.done:
            self._context.kernel.finish(self)

    def __str__(self) -> str:
        return "compute"


class ComputeEvent(Event[float]):
    """A gradient and its loss. The mathematics is done immediately; its time passes on the virtual clock."""

    __slots__ = ("_accumulates", "_batch", "_context", "_start_s", "_weight", "seconds")

    def __init__(
        self, context: SimulatedContext, batch: Batch, weight: float, *, accumulate: bool = False
    ) -> None:
        self.done = self.started = False
        self.error = self.waiter = None
        self._context = context
        self._batch = batch
        self._weight = weight
        self._accumulates = accumulate

    def start(self) -> None:
        context, batch = self._context, self._batch
        kernel, learner = context.kernel, context.model
        self._start_s = start_s = kernel.now
        self.seconds = seconds = context.price.seconds(_GRADIENT, 0, batch.count)
        loss = learner.replica.compute(
            batch, context.data.source, weight=self._weight, accumulate=self._accumulates
        )
        self.result = learner.note_loss(batch, loss)
        cores = context.world.cores
        if cores is None:
            kernel.at(start_s + seconds, ComputeEvent._end, self)
        else:
            cores.begin(self, seconds, ComputeEvent._end)

    def reach(self, share: float) -> Event[None] | None:
        """Return an event that is done when a share of the gradient's time has passed. None if it has."""
        context = self._context
        if context.world.cores is not None:
            return ProgressEvent(context, self, share * self.seconds)
        wait_s = self._start_s + share * self.seconds - context.kernel.now
        return Timer(context, wait_s) if wait_s > 0 else None

    def _end(self) -> None:
        if not self.done:
            context = self._context
            context.note_computing(_COMPUTE, self._start_s)
            context.kernel.finish(self)

    def withdraw(self) -> None:
        if self._context.world.cores is not None:
            self._context.world.cores.drop(self)
        self._context.model.replica.undo_buffers()
        self._context.note_computing(_CANCELLED, self._start_s)

    def __str__(self) -> str:
        return "compute"


class PassEvent(Event[T]):
    """A pass of a micro-batch through a segment. It is done immediately; its time passes on the virtual clock."""

    __slots__ = ("_context", "_kind", "_micro", "_one", "_run", "_start_s")

    def __init__(
        self, context: SimulatedContext, kind: int, one: Pass, micro: int, run: Callable[[], T]
    ) -> None:
        self.done = self.started = False
        self.error = self.waiter = None
        self._context = context
        self._kind = kind
        self._one = one
        self._micro = micro
        self._run = run

    def start(self) -> None:
        context = self._context
        kernel = context.kernel
        self._start_s = kernel.now
        seconds = context.price.pass_seconds(self._one)
        self.result = self._run()
        if seconds and context.world.cores is not None:
            context.world.cores.begin(self, seconds, PassEvent._end)
        elif seconds:
            kernel.at(self._start_s + seconds, PassEvent._end, self)
        else:
            self._end()

    def _end(self) -> None:
        if not self.done:
            context = self._context
            kernel = context.kernel
            span = pack_span(self._kind, self._start_s, kernel.now, self._micro, 0, context.step, NO_MESSAGE)
            context.record_packed(span)
            kernel.finish(self)

    def __str__(self) -> str:
        return "compute"


class SimulatedParts:
    """The seconds of one gradient in virtual time, spent in parts. It satisfies `GradientParts`."""

    def __init__(self, context: SimulatedContext, batch: Batch) -> None:
        self._context = context
        self._batch = batch
        self._seconds: float | None = None  # drawn when the gradient begins

    async def part(self, share: float, run: Callable[[], T], _processor_s: Callable[[], float]) -> T:
        context = self._context
        if self._seconds is None:
            self._seconds = context.price.seconds(_GRADIENT, 0, self._batch.count)
        start_s, seconds = context.kernel.now, share * self._seconds
        made = run()
        if seconds:
            await WorkTimer(context, seconds)
            context.note_computing(_COMPUTE, start_s)
        return made
