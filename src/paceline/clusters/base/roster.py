"""Which ranks of a run have ended, and how. Used by all drivers, for any transport."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.clusters.base.job import Job
from paceline.clusters.base.news import add_former, enter_news, read_news
from paceline.clusters.base.outcome import Outcome
from paceline.errors import PeerLost, RunError


class Roster:
    """State of each rank, as seen by the driver."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.ready: set[int] = set()
        self.outcomes: dict[int, Outcome] = {}
        self.failures: dict[int, RunError] = {}
        self._losses: dict[int, PeerLost] = {}
        """Lost ranks that the run continues without."""
        self.holds: dict[int, str] = {}
        """Part of the model that each rank holds, as the rank has reported it."""
        self._former: dict[int, list[Outcome]] = {}
        """What earlier processes of each rank have left."""
        self._told: dict[int, list[bytes]] = {}
        """Undecoded news of each rank. They are used if the rank is lost before it sends its outcome."""

    @property
    def all_ready(self) -> bool:
        return not self.missing

    @property
    def missing(self) -> list[int]:
        """Ranks that are not ready yet, except lost ranks that the run continues without."""
        return sorted(set(range(self._job.ranks)) - self.ready - self.outcomes.keys())

    @property
    def all_done(self) -> bool:
        return len(self.outcomes) == self._job.ranks

    @property
    def all_heard(self) -> bool:
        """Whether every rank has reported how it ended."""
        return len(self.failures.keys() | self.outcomes.keys()) == self._job.ranks

    def is_open(self, rank: int) -> bool:
        """Return whether a rank has not yet reported how it ended."""
        return rank not in self.outcomes and rank not in self.failures

    def note_loss(self, rank: int, reason: str, step: int) -> None:
        """Record that a rank was lost without an error message."""
        if self._job.can_lose(rank):
            self.do_without(rank, reason, step)
        else:
            self.failures[rank] = PeerLost(rank, reason)

    def do_without(self, rank: int, reason: str, step: int) -> None:
        """Record a lost rank that the run continues without, or that is no longer needed."""
        self._losses[rank] = PeerLost(rank, reason)
        outcome = self.outcomes[rank] = Outcome(rank=rank, lost=[(rank, step)])
        for line in self._told.pop(rank, ()):
            enter_news(outcome, read_news(line))

    def begin_anew(self, rank: int) -> None:
        """Expect the messages of a new process of a lost rank."""
        self._former.setdefault(rank, []).append(self.outcomes.pop(rank))
        self.ready.discard(rank)
        del self._losses[rank]

    def left_by(self, rank: int) -> list[Outcome]:
        """Return what lost processes of a rank have left."""
        lost = [self.outcomes[rank]] if rank in self._losses and rank in self.outcomes else []
        return [*self._former.get(rank, ()), *lost]

    def all_outcomes(self) -> list[Outcome]:
        """Return the outcome of each rank, with what its earlier processes have left."""
        for rank, former in self._former.items():
            for each in reversed(former):
                add_former(self.outcomes[rank], each)
        self._former.clear()
        return [self.outcomes[rank] for rank in range(self._job.ranks)]

    def end_run(self, reason: str) -> None:
        """Record that the run cannot continue after the last loss of a rank."""
        rank, loss = self._losses.popitem()
        self.failures[rank] = PeerLost(rank, f"{loss.reason}, and {reason}")

    def note_news(self, rank: int, line: bytes) -> None:
        """Store one line of news from a rank: see `write_news`."""
        self._told.setdefault(rank, []).append(line)

    @property
    def others_may_say_more(self) -> bool:
        """Whether the first failure is a lost rank.

        Ranks that wait for the lost rank will then still report their waits.
        """
        cause = next(iter(self.failures.values()))
        return isinstance(cause, PeerLost) and cause.rank not in self._losses

    def named(self, error: RunError) -> RunError:
        """Return the same error. Its text now includes what the named ranks hold."""
        error.holds = self.holds
        return error

    def cause_after(self, listen: Callable[[], None], grace_s: float) -> RunError:
        """Return the error that ended the run. If a rank was lost, first listen to what the others waited for."""
        if self.others_may_say_more:
            until_s = time.monotonic() + grace_s
            while time.monotonic() < until_s and not self.all_heard:
                listen()
        return self.cause()

    def cause(self) -> RunError:
        """Return the error that ended the run."""
        return self.named(self._cause())

    def _cause(self) -> RunError:
        rank, cause = next(iter(self.failures.items()))
        if not isinstance(cause, PeerLost):
            return cause
        if cause.rank in self._losses:  # the strategy cannot lose one more rank
            return PeerLost(cause.rank, self._losses[cause.rank].reason, cause.waiting)
        others = [e for e in self.failures.values() if not isinstance(e, PeerLost)]
        if others:
            return others[0]
        # A rank may notice a loss before the driver does. The cause is the dead rank, not the rank that detected
        # the loss.
        losses = [(r, e) for r, e in self.failures.items() if isinstance(e, PeerLost)]
        dead = [(r, e) for r, e in losses if e.rank == r]
        rank, cause = dead[0] if dead else (rank, cause)
        waits = [e.waiting for r, e in losses if r != rank and e.waiting]
        return PeerLost(cause.rank, cause.reason, "; ".join(waits) or cause.waiting)
