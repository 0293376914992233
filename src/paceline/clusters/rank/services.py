"""What a cluster implements for its ranks, besides the computation and the communication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor

from paceline.clusters.base.members import Arrival, MembersChanged, Membership
from paceline.clusters.rank.data import TrainingData
from paceline.clusters.rank.observer import Observer
from paceline.clusters.rank.row_board import RowBoard
from paceline.data.samples import Samples
from paceline.faults import Fault


class CheckpointSaver(Protocol):
    """Interface of the checkpoint writer: see `paceline.clusters.rank.checkpoint_writer`."""

    submitted: tuple[int, int]

    @property
    def is_due(self) -> bool: ...
    def prepare(self, step: int) -> None: ...
    def save(self, step: int, *, is_last: bool) -> None: ...
    def begin_generation(self, membership: Membership) -> None: ...
    def abandon(self, reason: str) -> None: ...
    def finish_if(self, submitted: Iterable[tuple[int, int]]) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class ClusterServices(ABC):
    """Services of a cluster for one rank."""

    __slots__ = ()

    @property
    @abstractmethod
    def data(self) -> TrainingData: ...

    @property
    @abstractmethod
    def test_samples(self) -> Samples | None: ...

    @property
    @abstractmethod
    def last_step(self) -> int:
        """End of the run: the requested number of steps, or fewer if the run ends early."""

    @abstractmethod
    def end_after(self, step: int) -> None:
        """Make every rank end the run when it has done step number `step`."""

    def end_generation_after(self, step: int, *, stops: bool) -> None:
        """Reporter only: make every rank end this generation after step number `step`. With `stops`, also stop the
        run."""
        self.announce_end(2 * (step + 1) + stops)

    @property
    @abstractmethod
    def announced_end(self) -> int:
        """Announced end of this generation, as an integer: 2 * end, plus 1 if the run stops there. 0 if none."""

    @abstractmethod
    def announce_end(self, word: int) -> None:
        """Announce the end of this generation to every rank before this rank continues."""

    @property
    @abstractmethod
    def stop_wanted(self) -> bool:
        """Whether a run with checkpoints has been asked to stop."""

    @abstractmethod
    def is_lost(self, rank: int) -> bool: ...

    @abstractmethod
    async def catch_up(self) -> None:
        """If the run resumes from a checkpoint, wait for the time at which this rank was saved."""

    @property
    def members_changed(self) -> bool:
        """Whether this generation of members ends, because a rank is lost or joins."""
        return False

    def stop_if_members_changed(self) -> None:
        """Stop the program at the start of a step. A single member never waits for others."""
        if self.members_changed:
            raise MembersChanged

    async def meet_members(self, arrival: Arrival) -> Membership | None:
        """Stop all operations of this rank, and wait until all members have. Return the next generation of members.

        None if all members have completed the run. Only in clusters with `min_workers`.
        """
        raise NotImplementedError

    def rebuild_model(self) -> None:
        """Replace the model by a new one with the initial values. Only in clusters with `min_workers`."""
        raise NotImplementedError

    def rewire(self, membership: Membership) -> None:
        """Connect this rank with the present members only."""
        raise NotImplementedError

    @abstractmethod
    def renew_net(self) -> None:
        """Give this rank and its twins nets of another number: see `Rank.net_number`."""

    @abstractmethod
    def settle(self) -> None:
        """At the end of a generation, complete all operations in flight."""

    @abstractmethod
    def announce(self, evaluation: int, metric: float) -> None:
        """Send the metric of an evaluation to every rank before this rank continues.

        A slow rank may read a metric after the next one is announced, but not after the one after next.
        """

    @abstractmethod
    def announced(self, evaluation: int) -> float:
        """Return the metric of one of the last two evaluations."""

    @abstractmethod
    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        """Send a record, and the model state if given, to the driver's callbacks. Return whether the run must end."""

    @abstractmethod
    def now(self) -> float: ...

    def clock_stopped(self) -> AbstractContextManager[None]:
        """Stop the clock while the reporter evaluates, in clusters with virtual time."""
        return nullcontext()

    @abstractmethod
    def open_parameter_board(self) -> Observer:
        """Open the board on which the workers publish their parameters."""

    def open_row_board(self, name: str, like: Tensor) -> RowBoard:
        """Open a board with rows of the size and dtype of `like`, in clusters with shared evaluation."""
        raise NotImplementedError

    async def meet_fault(self, fault: Fault) -> None:
        """Inject a fault into this rank now, in clusters with faults."""
        raise NotImplementedError

    @abstractmethod
    def show_progress(self, record: dict[str, Any]) -> None:
        """Report the progress of the run to the driver."""

    @abstractmethod
    def go_on_without(self, rank: int) -> None:
        """Continue without a rank that is lost or late."""
