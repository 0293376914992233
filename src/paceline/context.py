"""What a strategy may ask of its world: protocols, no logic.

A strategy is a set of role programs, `async def worker(self, ctx)` and the like, written against `Context`.
The worlds that supply one (local processes, simulated time) may differ in how they wait and in nothing else:

- In a world of real processes an await blocks until its operation is done, and never suspends.
- In the simulated world an await suspends into a heap of virtual time.

Concurrency exists only through handles: `start` begins an operation or a whole coroutine, `await handle` ends it.
Every span of time is recorded by the world, never by a strategy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from paceline.schedules.collective import Collective

__all__ = [
    "ANY",
    "BUCKET_BYTES",
    "Batch",
    "Combine",
    "Context",
    "Handle",
    "Message",
    "Program",
    "Strategy",
    "Window",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

BUCKET_BYTES = 25 * 2**20
"""Gradients are handed over in buckets of about this size: the size that PyTorch's DDP found good."""

ANY = -1
"""As the source of `recv`: whichever rank's message comes first."""

Combine = Literal["copy", "sum", "max", "min"]
"""What `recv` does with the tensor that it is given: overwrite it, or combine it with what arrives."""


@dataclass(slots=True)  # not frozen, which would cost more than all else: simulations make millions
class Batch:
    """One worker's slice of the global batch of one step."""

    step: int
    start: int
    """Where the slice begins in the global batch."""
    count: int
    """Samples of this slice. May be zero."""
    total: int
    """Samples of the global batch, over all workers."""
    whole: Callable[[int], np.ndarray]
    """Gives the sample numbers of the global batch of a step."""

    @property
    def indices(self) -> np.ndarray:
        """The sample numbers of this slice."""
        return self.whole(self.step)[self.start : self.start + self.count]

    @property
    def weight(self) -> float:
        """This slice's share of the global batch: what its mean gradient is multiplied with."""
        return self.count / self.total


class Message(NamedTuple):
    """What `recv` returns."""

    source: int
    tag: int
    version: int
    tensor: Tensor
    note: float = 0.0
    """A number that rides along: a loss, say."""


class Handle(Protocol[T_co]):
    """An operation under way."""

    @property
    def done(self) -> bool:
        """Whether it has ended: with a result, with an error, or cancelled."""
        ...

    def cancel(self) -> None:
        """Stop it as soon as it can be stopped. A cancelled handle is done; awaiting it raises `Cancelled`."""
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...


class Window(Protocol):
    """Memory that all ranks of one host see, as a matrix: `tensor[row]` is a flat tensor."""

    @property
    def tensor(self) -> Tensor: ...

    def barrier(self) -> Awaitable[None]:
        """Wait until every rank of the window's group has come here as often."""
        ...

    def reduce(
        self, columns: slice, rows: Sequence[int], into: Tensor, combine: Combine = "sum"
    ) -> Awaitable[None]:
        """Write the combination of `rows`, in that order, over `columns` to `into`."""
        ...


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
    def peers(self) -> Sequence[int]:
        """All ranks."""
        ...

    @property
    def hosts(self) -> Sequence[int]:
        """The host of each rank, as a number. Ranks of one host can open a window together."""
        ...

    @property
    def windows_are_fast(self) -> bool:
        """Whether all ranks share a host and its memory is the quickest way between them."""
        ...

    @property
    def rng(self) -> np.random.Generator:
        """Chance, seeded by the run's seed and the rank: the same in every world."""
        ...

    # What is learned
    @property
    def steps(self) -> int:
        """Updates that the run is long: what it was asked for, or fewer once its target is reached."""
        ...

    @property
    def parameters(self) -> Tensor:
        """All trainable parameters of this rank's replica, one flat tensor."""
        ...

    @property
    def gradient(self) -> Tensor:
        """All gradients of this rank's replica, one flat tensor of the same layout."""
        ...

    @property
    def buffers(self) -> Sequence[Tensor]:
        """The module's buffers (BatchNorm statistics and the like), one flat tensor per dtype."""
        ...

    @property
    def clips(self) -> bool:
        """Whether the task clips gradients by their global norm."""
        ...

    def rounds(self) -> AsyncIterator[int]:
        """The number of each step, until the run's last: the loop of a role that computes no gradients."""
        ...

    def batches(self, *, endless: bool = False) -> AsyncIterator[Batch]:
        """This worker's slice of each global batch, one a step, until the run's last step.

        `endless`: for workers that go at their own pace, until somebody tells them to stop.
        """
        ...

    def batch_of(self, worker: int, step: int) -> Batch:
        """Any worker's slice of the global batch of a step: every rank knows them all."""
        ...

    def inspects(self, step: int) -> bool:
        """Whether the run looks at the reporter's parameters after this step: to evaluate them, or at its end."""
        ...

    @property
    def loss(self) -> float:
        """The mean loss of the gradient that was last computed here."""
        ...

    def gradients(self, batch: Batch, *, bucket_bytes: int = BUCKET_BYTES) -> AsyncIterator[Tensor]:
        """The gradient of a batch, times its weight, bucket by bucket, while backward goes on.

        A bucket is a slice of `gradient`, of whole parameters and of about the size given; together they cover it, in
        one order that is the same on every rank.
        """
        ...

    def compute(self, batch: Batch) -> Awaitable[Tensor]:
        """The gradient of a batch, times its weight, whole: fills and returns `gradient`."""
        ...

    def apply(
        self, shard: slice | None = None, *, norm: float | None = None, advance: bool = True
    ) -> Awaitable[None]:
        """One step of the optimizer with `gradient`, on all parameters or on one shard of them.

        `norm` is the gradient's global norm, which a shard cannot know; it is needed where the task clips. Without
        `advance` the learning-rate schedule stays where it is: for a local step, which is no step of the run.
        """
        ...

    def advance_schedule(self, updates: int) -> None:
        """Move the learning-rate schedule on by updates that other ranks made to the same parameters."""
        ...

    def reset_optimizer(self) -> None:
        """Forget momentum and the like, and begin the learning-rate schedule anew."""
        ...

    @property
    def moments(self) -> Sequence[Tensor]:
        """What the optimizer remembers of the parameters (momentum and the like), in one order on every rank."""
        ...

    @property
    def sample_count(self) -> int:
        """How many training samples there are."""
        ...

    @property
    def targets(self) -> np.ndarray:
        """The target of every training sample, for strategies that part the data among workers."""
        ...

    def shards(self, parts: int) -> Sequence[slice]:
        """The parameters in `parts` contiguous shards, cut where this task's optimizer allows it."""
        ...

    def place(self, *, parameters: Tensor | None = None, gradient: Tensor | None = None) -> None:
        """Move this replica's flat tensors into other memory (a row of a window, say)."""
        ...

    def twin(self) -> Context:
        """This rank once more, with a replica of its own, for a program in the background.

        It is for a rank that both serves and computes: the server's parameters must not change under a computation.
        """
        ...

    # How ranks talk
    def send(
        self, to: int, tensor: Tensor, *, tag: int = 0, version: int = 0, note: float = 0.0
    ) -> Awaitable[None]:
        """Done when the tensor may be overwritten."""
        ...

    def recv(
        self, source: int, into: Tensor | None = None, *, combine: Combine = "copy", tag: int = 0
    ) -> Awaitable[Message]:
        """The next message of this tag from `source` (or from `ANY`), combined with `into` if given."""
        ...

    def lend(self, *, parameters: bool = False, gradient: bool = False) -> None:
        """Move this replica's flat tensors to memory from which messages are read where they lie, where there is any.

        It spares a copy of each message. A send of such a tensor is done when its receiver has read it: it is for ranks
        which have nothing to do until then, or which `detach` it.
        """
        ...

    def detach(self, sending: Handle[None]) -> Awaitable[None]:
        """Done when the tensor of a send that was started may be overwritten: what has not gone goes on from a copy.

        That is at once, unless the receiver is reading it where it lies.
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

    def window(self, name: str, group: Sequence[int], *, rows: int, like: Tensor) -> Window:
        """Memory shared by the ranks of `group`, all on this host: `rows` rows of the size and dtype of `like`."""
        ...

    def execute(
        self, collective: Collective, group: Sequence[int], data: Tensor, *, combine: Combine, tag: int
    ) -> Awaitable[None]:
        """Take this rank's part in a collective on `data`, flat and contiguous, which is overwritten."""
        ...

    def native_all_reduce(self, tensor: Tensor, group: Sequence[int], op: str) -> Awaitable[None]:
        """All-reduce by torch.distributed, where the world has it."""
        ...

    def count_collective(self, group_number: int) -> int:
        """How many collectives of a group, which has this number, this rank has begun before, modulo 65,536."""
        ...

    # What happens meanwhile
    def now(self) -> float:
        """Seconds since the run began, on this world's clock."""
        ...

    def sleep(self, seconds: float) -> Awaitable[None]: ...

    def report(self, **values: float) -> None:
        """Add values to the record of the current step."""
        ...

    def record(self, step: int, *, loss: float, samples: int, force: bool = False) -> None:
        """Write the record of one update of this rank's own, where each rank updates the parameters at its own pace.

        `step` counts the updates of all ranks so far, as this rank sees them; `samples` are those of this update. The
        run's history is the records of all ranks in order of time. The first worker evaluates about as often as asked;
        where workers show their parameters it then notes `consensus`, as in `observe`, and also where `force` is true.
        """
        ...

    def count_update(self) -> int:
        """Count an update of this rank's own, where each goes at its own pace: its number among those of all ranks.

        No two updates have the same number, and none is left out.
        """
        ...

    def show(self, parameters: Tensor | None = None) -> None:
        """Let the run see this worker's own parameters (or what is given instead) as they are now.

        Where workers show theirs, the run's model is their mean. It is measuring, and costs the run nothing.
        """
        ...

    def observe(self, step: int, *, force: bool = False) -> Awaitable[None]:
        """Let the run look at the mean of all workers' parameters after a step, if it wants to, or if `force` is true.

        Every worker calls it after each of its steps, and waits for the others in those steps that are looked at. The
        record of such a step has `consensus`: the root of the mean squared distance of the workers from their mean.
        """
        ...

    def note_own_metric(self) -> None:
        """Evaluate this worker's own parameters, off the clock, for `run.peer_metrics`."""
        ...

    def note_staleness(self, staleness: int) -> None:
        """Count a gradient in the run's histogram: the version at its update minus the version at its pull."""
        ...

    def note_lost(self, rank: int) -> None:
        """Write into the run's record that it goes on without a rank."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """How workers cooperate. Each role that `roles` names is a method: `async def worker(self, ctx)`."""

    def roles(self, workers: int) -> Sequence[str]:
        """The role of each rank. Workers come first: ranks 0 to `workers - 1`. Who only serves is a "server"."""
        ...

    # Optional: `expendable`, the roles of which the strategy can lose ranks and go on. Who waits for such a rank gets
    # `PeerLost`; the death of any other rank ends the run.


Program = Callable[[Context], Awaitable[None]]
