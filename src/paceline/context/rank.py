"""`ctx` itself: the identity of a rank, its loop and its waits. Also the strategy interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from paceline.context.batch import Batch
from paceline.context.handles import Handle
from paceline.context.log import Log
from paceline.context.model import Model
from paceline.context.net import Net

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

StateAt = Literal["", "server", "workers", "shards"]
"""Where the state of a run is between two steps: see `Strategy.state_at`."""


class Context(Protocol):
    """The interface of one rank to its cluster."""

    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> Sequence[int]:
        """Ranks that compute gradients, in order."""
        ...

    @property
    def servers(self) -> Sequence[int]:
        """Ranks that only store parameters. Empty in a peer-to-peer strategy."""
        ...

    @property
    def rng(self) -> np.random.Generator:
        """Random generator, seeded by the run's seed and the rank. The same in every backend."""
        ...

    @property
    def model(self) -> Model: ...
    @property
    def net(self) -> Net: ...
    @property
    def log(self) -> Log: ...

    def rounds(self) -> AsyncIterator[int]:
        """Yield the number of each step, up to the run's last. For roles that compute no gradients."""
        ...

    def batches(self, own: Iterator[Batch] | None = None, *, endless: bool = False) -> AsyncIterator[Batch]:
        """Yield this worker's slice of each global batch, one per step, until the run's last step.

        With `endless` there is no last step: for workers that are not synchronized and leave the loop themselves. With
        `own`, yield these batches instead, which are not steps of the run. While a batch is computed, the next one is
        prefetched.
        """
        ...

    def batch_of(self, worker: int, step: int) -> Batch:
        """Return the slice of any worker of the global batch of a step. The result is the same on every rank."""
        ...

    @property
    def targets(self) -> Sequence[Any]:
        """Target of every training sample, for strategies that partition the data among workers.

        The length is known immediately. The values are read when the sequence is converted to an array.
        """
        ...

    def start(self, work: Awaitable[T]) -> Handle[T]:
        """Start an operation, or a coroutine of operations, and return without waiting.

        An error in such a coroutine is raised where its handle is awaited. If the handle is never awaited, the error is
        raised where the program waits next.
        """
        ...

    def first(self, handles: Sequence[Handle[Any]]) -> Awaitable[Handle[Any]]:
        """Wait for the first handle that is done. If several are done, return the leftmost."""
        ...

    def now(self) -> float:
        """Return the seconds since the start of the run, on the backend's clock."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]: ...


@runtime_checkable
class Strategy(Protocol):
    """A distributed training algorithm. Each role named by `roles` is a method: `async def worker(self, ctx)`."""

    expendable: ClassVar[Sequence[str]] = ()
    """Roles whose ranks may die without ending the run.

    A wait for such a rank raises `PeerLost`. The death of any other rank ends the run.
    """

    @property
    def replicates(self) -> Sequence[str]:
        """Roles that checkpoints need not save, because the reporter holds all of their model state.

        Their parameters are not saved. If all roles are listed, a run can resume with a different set of ranks.
        Optimizer state shards do not count: the rank that owns a shard saves it.
        """
        return ()

    @property
    def state_at(self) -> StateAt:
        """Where the state of a run is between two steps. It decides how a run continues without a lost worker.

        "server": one rank has another role than "worker". It holds all of the state, workers only have copies. The
        others repeat the step. "workers": each worker has a model of its own. The others repeat the steps since their
        last average, without that of the lost worker. "shards": several ranks hold parts of it, so none may be lost.
        Empty with `in_step`, or if the programs themselves continue without `expendable` ranks.
        """
        return ""

    @property
    def holds_parts(self) -> bool:
        """Whether workers hold parts of the model (`stages.hold`).

        They then do not start with the whole model or with a gradient of the whole model.
        """
        return False

    in_step: ClassVar[bool] = False
    """Whether every worker holds the same whole model after each step, and no worker completes the next step alone.

    Such workers share evaluations. Buffers, such as BatchNorm statistics, are those of the first worker: the others
    receive them at an evaluation.
    """

    cuts_model: ClassVar[bool] = False
    """Whether ranks cut the model (`ctx.model.stages`). Cutting may have to trace the model.

    A local run imports the modules for tracing once for all ranks.
    """

    def syncs_batch_norm(self, workers: int) -> bool:
        """Return whether BatchNorm can use the statistics of whole batches: see `Task.sync_batch_norm`.

        In every step either all workers call `ctx.model.compute`, `gradients` or `Shards.passes` once, at the same
        time, for the slices of one global batch and from equal parameters. Or a worker computes the whole batch.
        """
        return False

    def divides_batch(self, workers: int) -> bool:
        """Return whether gradients of parts of a global batch are summed: parts of workers, or micro-batches.

        The sum is the gradient of the batch only if the loss is a mean over samples. A cluster checks that it is.
        """
        return workers > 1

    def steps_ahead(self, workers: int) -> int:
        """Return how many further steps a worker may begin before the reporter has completed its present one.

        An early end of the run is announced as many steps earlier.
        """
        return 0

    def roles(self, workers: int) -> Sequence[str]:
        """Return the role of each rank.

        Workers come first: ranks 0 to `workers - 1`. A dedicated server has "server".
        """
        return ("worker",) * workers

    def prepare(self, ctx: Context) -> None:
        """Do slow work on a worker that needs no communication, such as cutting the model.

        Backends with real processes call it before the run's clock starts, so that a slow rank costs no run time. The
        role program requests the same work from `ctx` again, and gets the stored result.
        """
        return None


Program = Callable[[Context], Awaitable[None]]
