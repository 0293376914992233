"""The operations of the local world besides messages: computing, sleeping, background programs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.context import Batch
from paceline.errors import Cancelled
from paceline.links.operation import Doing, Operation
from paceline.trace import Kind

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext
    from paceline.clusters.process.learner import ProcessLearner

__all__ = ["Background", "BucketOperation", "ComputeOperation", "FirstOperation", "SleepOperation"]

T = TypeVar("T")


class Background(Operation[T]):
    """A coroutine that goes on whenever its rank polls."""

    __slots__ = ("_coroutine", "_current", "heard")

    def __init__(self, waiter: ProcessContext, coroutine: Coroutine[Any, None, T]) -> None:
        super().__init__(waiter)
        self.heard = False  # whether somebody awaits it, and so hears of its error
        self._coroutine = coroutine
        self._current: Operation[Any] | None = None

    def __await__(self) -> Generator[Operation[T], None, T]:
        self.heard = True
        return (yield from super().__await__())

    def poll(self) -> bool:
        return self.done or self._resume(self._coroutine.send, None)

    def throw(self, error: BaseException) -> None:
        """Raise an error where the coroutine waits."""
        if self._current is not None:
            self._current.cancel()
        self._resume(self._coroutine.throw, error)

    def _resume(self, how: Callable[[Any], Operation[Any]], what: Any) -> bool:
        outer, self.waiter.in_background = self.waiter.in_background, True
        try:
            self._current = how(what)
        except StopIteration as stop:
            self.result = stop.value
            self.done = True
        except BaseException as error:
            self.error = error
            self.done = True
        finally:
            self.waiter.in_background = outer
        return self.done

    def cancel(self) -> None:
        if not self.done:
            if self._current is not None:
                self._current.cancel()
            self._coroutine.close()
            super().cancel()

    def awaited(self) -> tuple[int, ...]:
        return self._current.awaited() if self._current is not None else ()

    def progress(self) -> int:
        return self._current.progress() if self._current is not None else 0

    def due_s(self) -> float:
        return self._current.due_s() if self._current is not None else math.inf

    def __str__(self) -> str:
        return str(self._current) if self._current is not None else "a background program"


class FirstOperation(Operation[Operation[Any]]):
    """Done when one of several is."""

    __slots__ = ("_handles",)

    def __init__(self, waiter: ProcessContext, handles: Sequence[Operation[Any]]) -> None:
        super().__init__(waiter)
        self._handles = handles

    def poll(self) -> bool:
        for handle in self._handles:
            if handle.poll():
                self.result = handle
                self.done = True
                return True
        return False

    def awaited(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(rank for handle in self._handles for rank in handle.awaited()))

    def progress(self) -> int:
        return sum(handle.progress() for handle in self._handles)

    def due_s(self) -> float:
        return min((handle.due_s() for handle in self._handles), default=math.inf)

    def __str__(self) -> str:
        return " or ".join(str(handle) for handle in self._handles)


class SleepOperation(Operation[None]):
    """Done when its time has come. It begins when it is first polled."""

    __slots__ = ("_began_s", "_context", "_seconds", "_until_s")

    doing = Doing.sleep

    def __init__(self, context: ProcessContext, seconds: float) -> None:
        super().__init__(context)
        self._context = context
        self._seconds = seconds
        self._began_s = 0.0
        self._until_s = math.inf
        self.result = None

    def poll(self) -> bool:
        if self._until_s == math.inf:
            self._began_s = self._context.now()
            self._until_s = time.monotonic() + self._seconds
        if not self.done and time.monotonic() >= self._until_s:
            self.done = True
            self._context.span(Kind.SLEEP, self._began_s, self._context.now())
        return self.done

    def due_s(self) -> float:
        return self._until_s


class ComputeOperation(Operation[float]):
    """The gradient of one batch, and its loss: in the foreground when awaited, in a thread when started.

    Only a started computation can be cancelled, for only then is there somebody to cancel it.
    """

    __slots__ = ("_batch", "_cancelled", "_context", "_how", "_learner", "_started", "ready")

    doing = Doing.compute

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
        self._cancelled = threading.Event()
        self.ready: set[int] = set()

    def __await__(self) -> Generator[Operation[Any], None, float]:
        context = self._context
        if not self._started and not context.in_background and not context.computes_in_thread:
            self._started = True
            if ComputeOperation._under_way is not None:
                ComputeOperation._under_way.result()  # it may be cancelled, and not have stopped yet
            self._run()
            return self.take()
        return (yield from super().__await__())

    def poll(self) -> bool:
        if not self._started:
            self._started = True
            if ComputeOperation._threads is None:
                # One thread: a replica computes one gradient at a time.
                ComputeOperation._threads = ThreadPoolExecutor(1, thread_name_prefix="compute")
            ComputeOperation._under_way = ComputeOperation._threads.submit(self._run_in_thread)
        return self.done

    def cancel(self) -> None:
        if not self.done:
            self._cancelled.set()
            super().cancel()

    def __str__(self) -> str:
        return "compute"

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
        kind = Kind.COMPUTE
        try:
            # Processor time: a rank that waits for a core is not slow by itself.
            processor_start_s = time.thread_time()
            loss = replica.compute(batch, context.data.source, self._on_bucket, checkpoint, **self._how)
            self._dawdle(time.thread_time() - processor_start_s)
        except Cancelled:
            kind = Kind.CANCELLED
            replica.undo_buffers()
            raise
        finally:
            context.span(kind, start_s, context.now())
        self.result = learner.note_loss(batch, loss)
        self.done = True

    def _on_bucket(self, number: int) -> None:
        if not self._is_straggler():  # a straggler's buckets are not ready before its delay has passed
            self.ready.add(number)
            self._context.wake()

    def _is_straggler(self) -> bool:
        stragglers, rank = self._context.stragglers, self._context.rank
        return stragglers.factor(rank) != 1.0 or stragglers.delay_of(rank) is not None

    def _dawdle(self, computed_s: float) -> None:
        """Be as slow as the cluster's description says."""
        stragglers, rank = self._context.stragglers, self._context.rank
        extra_s = computed_s * (stragglers.factor(rank) - 1.0)
        delay = stragglers.delay_of(rank)
        if delay is not None:
            extra_s += delay.draw(self._context.delay_rng)
        if extra_s > 0 and self._cancelled.wait(extra_s):
            raise Cancelled


class BucketOperation(Operation[None]):
    """Done when backward has filled one bucket, or has ended."""

    __slots__ = ("_computation", "_number")

    doing = Doing.compute

    def __init__(self, computation: ComputeOperation, number: int) -> None:
        super().__init__(computation.waiter)
        self._computation = computation
        self._number = number
        self.result = None

    def poll(self) -> bool:
        if not self.done:
            self.done = self._number in self._computation.ready or self._computation.done
            self.error = self._computation.error
        return self.done

    def __str__(self) -> str:
        return "compute"
