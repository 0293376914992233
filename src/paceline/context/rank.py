"""`ctx` itself: who a rank is, its loop, how it waits; and what a strategy is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from paceline.context.batch import Batch
from paceline.context.handles import Handle
from paceline.context.log import Log
from paceline.context.model import Model
from paceline.context.net import Net

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Context", "Program", "Strategy"]

T = TypeVar("T")


class Context(Protocol):
    """One rank's view of its world."""

    @property
    def rank(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def workers(self) -> Sequence[int]:
        """The ranks that compute gradients, in order."""
        ...

    @property
    def servers(self) -> Sequence[int]:
        """The ranks that only hold parameters. Empty in a peer-to-peer strategy."""
        ...

    @property
    def rng(self) -> np.random.Generator:
        """Chance, seeded by the run's seed and the rank: the same in every world."""
        ...

    @property
    def model(self) -> Model: ...
    @property
    def net(self) -> Net: ...
    @property
    def log(self) -> Log: ...

    def rounds(self) -> AsyncIterator[int]:
        """The number of each step, until the run's last: the loop of a role that computes no gradients."""
        ...

    def batches(self, *, endless: bool = False) -> AsyncIterator[Batch]:
        """This worker's slice of each global batch, one a step, until the run's last step.

        `endless`: for workers that go at their own pace, until somebody tells them to stop.
        """
        ...

    def start(self, work: Awaitable[T]) -> Handle[T]:
        """Begin an operation, or a coroutine made of operations, and go on.

        An error in such a coroutine is raised where it is awaited; if nobody awaits it, where the program waits next.
        """
        ...

    def first(self, handles: Sequence[Handle[Any]]) -> Awaitable[Handle[Any]]:
        """The first of the handles that is done: the leftmost, where several are."""
        ...

    def now(self) -> float:
        """Seconds since the run began, on this world's clock."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]: ...


@runtime_checkable
class Strategy(Protocol):
    """How workers cooperate. Each role that `roles` names is a method: `async def worker(self, ctx)`."""

    expendable: ClassVar[Sequence[str]] = ()
    """The roles of which the strategy can lose ranks and go on.

    Who waits for such a rank gets `PeerLost`; the death of any other rank ends the run.
    """

    replicates: ClassVar[Sequence[str]] = ()
    """The roles whose ranks hold, between two checkpoints' legs, nothing of the model that the reporter does not hold.

    Their parameters need not be written. Where all roles are such, a run can go on with other ranks. Shards of the
    optimizer's state do not count: each is written by the rank that has it.
    """

    @property
    def holds_parts(self) -> bool:
        """Whether workers hold parts of the model (`pieces.hold`, `pieces.share`): they then do not begin with all of
        it, nor with a gradient of all of it."""
        return False

    in_step: ClassVar[bool] = False
    """Whether every worker holds the run's whole model after each step, the same on all, and none ends the next step
    without the others.

    They then share evaluations. Of buffers, such as BatchNorm's statistics, the first worker's count: the others are
    given them at an evaluation.
    """

    cuts_model: ClassVar[bool] = False
    """Whether its ranks cut the model (`ctx.model.pieces`). They may have to trace it then: a local run has what that
    needs imported once for all of them.
    """

    def roles(self, workers: int) -> Sequence[str]:
        """The role of each rank. Workers come first: ranks 0 to `workers - 1`. Who only serves is a "server"."""
        return ("worker",) * workers

    def prepare(self, ctx: Context) -> None:
        """Do on a worker what takes long and sends nothing, such as cutting the model.

        Real worlds ask for it before the run's clock begins, so that nobody waits on the clock for a rank that takes
        longer. The role program asks `ctx` for the same again, and finds it done.
        """
        return None


Program = Callable[[Context], Awaitable[None]]
