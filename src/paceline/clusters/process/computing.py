"""Compute operations of a real process: a gradient, and one bucket of it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.clusters.process.gradient_duration import pad_to_duration
from paceline.context import Batch
from paceline.errors import Cancelled
from paceline.links import clock
from paceline.links.operation import Activity, Operation
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext
    from paceline.clusters.process.learner import ProcessLearner

T = TypeVar("T")


class ComputeOperation(Operation[float]):
    """Gradient and loss of one batch. Runs in the foreground if awaited, in a thread if started.

    Only a started computation can be cancelled: otherwise the program waits and cannot cancel it.
    """

    __slots__ = (
        "_batch",
        "_began_s",
        "_cancelled",
        "_context",
        "_how",
        "_learner",
        "_least_s",
        "_started",
        "ready",
    )

    doing = Activity.compute

    _threads: ThreadPoolExecutor | None = None
    _under_way: Future[None] | None = None

    def __init__(
        self,
        context: ProcessContext,
        learner: ProcessLearner,
        batch: Batch,
        weight: float,
        *,
        accumulate: bool,
    ) -> None:
        super().__init__(context)
        self._context = context
        self._learner = learner
        self._batch = batch
        self._how: dict[str, Any] = {"weight": weight, "accumulate": accumulate}
        self._started = False
        self._began_s = self._least_s = 0.0
        self._cancelled = threading.Event()
        self.ready: set[int] = set()
        """Buckets that the backward pass has filled."""

    def __await__(self) -> Generator[Operation[Any], None, float]:
        context = self._context
        if not self._started and not context.in_background and not context.computes_in_thread:
            self._start()
            if ComputeOperation._under_way is not None:
                ComputeOperation._under_way.result()  # the computation may be cancelled but still running
            self._run()
            return self.take()
        return (yield from super().__await__())

    def poll(self) -> bool:
        if not self._started:
            self._start()
            if ComputeOperation._threads is None:
                # One thread: a replica computes one gradient at a time.
                ComputeOperation._threads = ThreadPoolExecutor(1, thread_name_prefix="compute")
            ComputeOperation._under_way = ComputeOperation._threads.submit(self._run_in_thread)
        return self.done

    def cancel(self) -> None:
        if not self.done:
            self._cancelled.set()
            super().cancel()

    def bucket_due_s(self, share: float) -> float:
        """Return when a filled bucket becomes visible: after this share of the gradient's minimum duration."""
        return self._began_s + share * self._least_s

    def __str__(self) -> str:
        return "compute"

    def _start(self) -> None:
        self._started = True
        # Here and not in the thread: a gradient that is cancelled before it starts must still draw its duration.
        self._least_s = self._context.duration.begin(self._batch.count)

    def _run_in_thread(self) -> None:
        try:
            self._run(self._checkpoint)
        except BaseException as error:
            self.error = self.error or error
        self.done = True
        self._context.wake()

    def _checkpoint(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def _run(self, checkpoint: Any = None) -> None:
        context, learner, batch = self._context, self._learner, self._batch
        replica = learner.replica
        start_s = context.now()
        self._began_s = clock.now()
        kind = Kind.COMPUTE
        try:
            processor_start_s = time.thread_time()
            loss = replica.compute(batch, context.data.source, self._on_bucket, checkpoint, **self._how)
            worked_s = replica.engine.device_s or time.thread_time() - processor_start_s
            self._dawdle(clock.now() - self._began_s, worked_s)
        except Cancelled:
            kind = Kind.CANCELLED
            replica.undo_buffers()
            raise
        finally:
            context.span(kind, start_s, context.now())
        self.result = learner.note_loss(batch, loss)
        self.done = True

    def _on_bucket(self, number: int) -> None:
        if self._context.duration.shows_buckets:
            self.ready.add(number)
            self._context.wake()

    def _dawdle(self, took_s: float, worked_s: float) -> None:
        """Wait as long as the cluster's settings require.

        `worked_s` is the time of the processor or of the device.
        """
        left_s = self._context.duration.left_s(self._least_s, took_s, worked_s)
        until_s = clock.now() + left_s
        patient_until_s = time.monotonic() + left_s + self._context.deadline_s
        # A wait may end early, and the clock may be stopped.
        while left_s > 0 and time.monotonic() < patient_until_s:
            if self._cancelled.wait(left_s):
                raise Cancelled
            left_s = until_s - clock.now()


class BucketOperation(Operation[None]):
    """Done when the backward pass has filled one bucket and it is visible, or when the whole gradient is done."""

    __slots__ = ("_computation", "_number", "_share")

    doing = Activity.compute

    def __init__(self, computation: ComputeOperation, number: int, share: float) -> None:
        super().__init__(computation.waiter)
        self._computation = computation
        self._number = number
        self._share = share
        self.result = None

    def poll(self) -> bool:
        if not self.done:
            self.done = self._computation.done or clock.now() >= self.due_s()
            self.error = self._computation.error
        return self.done

    def due_s(self) -> float:
        if self._number not in self._computation.ready:
            return math.inf
        return self._computation.bucket_due_s(self._share)

    def __str__(self) -> str:
        return "compute"


class ProcessParts:
    """The real seconds of one gradient, spent in parts. It satisfies `GradientParts`."""

    def __init__(self, context: ProcessContext, batch: Batch) -> None:
        self._context = context
        self._batch = batch
        self._least_s: float | None = None  # drawn when the gradient begins

    async def part(self, share: float, run: Callable[[], T], processor_s: Callable[[], float]) -> T:
        context, duration = self._context, self._context.duration
        if self._least_s is None:
            self._least_s = duration.begin(self._batch.count)
        start_s, began_s, processor_start_s = context.now(), clock.now(), processor_s()
        made = run()
        took_s, worked_s = clock.now() - began_s, processor_s() - processor_start_s
        pad_to_duration(duration.left_s(share * self._least_s, took_s, worked_s), context.deadline_s)
        context.span(Kind.COMPUTE, start_s, context.now())
        return made
