"""Which ranks of a run have ended, and how. Every driver decides by it, however its ranks' letters reach it."""

from __future__ import annotations

from paceline.clusters.job import Job
from paceline.clusters.news import enter_news, read_news
from paceline.clusters.outcome import Outcome
from paceline.errors import PeerLost, RunError

__all__ = ["Roster"]


class Roster:
    """The driver's list of ranks."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.ready: set[int] = set()
        self.outcomes: dict[int, Outcome] = {}
        self.failures: dict[int, RunError] = {}
        self._losses: dict[int, PeerLost] = {}
        """Ranks that the run may go on without."""
        self.holds: dict[int, str] = {}
        """What each rank has said that it holds of the model."""
        self._told: dict[int, list[bytes]] = {}
        """What ranks have told of what they bring back, unread: it counts if they do not come to their end."""

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == self._job.ranks

    @property
    def missing(self) -> list[int]:
        """Ranks that are not ready yet."""
        return sorted(set(range(self._job.ranks)) - self.ready)

    @property
    def all_done(self) -> bool:
        return len(self.outcomes) == self._job.ranks

    @property
    def all_heard(self) -> bool:
        """Whether every rank has said how it ended."""
        return len(self.failures.keys() | self.outcomes.keys()) == self._job.ranks

    def is_open(self, rank: int) -> bool:
        """Whether a rank is still expected to say how it ended."""
        return rank not in self.outcomes and rank not in self.failures

    def note_loss(self, rank: int, reason: str, step: int) -> None:
        """A rank has gone without a word."""
        if self._job.can_lose(rank) and self.all_ready:
            self.do_without(rank, reason, step)
        else:
            self.failures[rank] = PeerLost(rank, reason)

    def do_without(self, rank: int, reason: str, step: int) -> None:
        """Go on, or end well, without a rank."""
        self._losses[rank] = PeerLost(rank, reason)
        outcome = self.outcomes[rank] = Outcome(rank=rank, lost=[(rank, step)])
        for line in self._told.pop(rank, ()):
            enter_news(outcome, read_news(line))

    def note_news(self, rank: int, line: bytes) -> None:
        """A rank has told what it has written down since it last did: see `write_news`."""
        self._told.setdefault(rank, []).append(line)

    @property
    def others_may_say_more(self) -> bool:
        """Whether the first failure is a lost rank: then ranks that wait for it will still say where they wait."""
        cause = next(iter(self.failures.values()))
        return isinstance(cause, PeerLost) and cause.rank not in self._losses

    def named(self, error: RunError) -> RunError:
        """The same error, which from now on says what the ranks it names hold."""
        error.holds = self.holds
        return error

    def cause(self) -> RunError:
        """What ended the run."""
        return self.named(self._cause())

    def _cause(self) -> RunError:
        rank, cause = next(iter(self.failures.items()))
        if not isinstance(cause, PeerLost):
            return cause
        if cause.rank in self._losses:  # one loss too many for the strategy
            return PeerLost(cause.rank, self._losses[cause.rank].reason, cause.waiting)
        others = [e for e in self.failures.values() if not isinstance(e, PeerLost)]
        if others:
            return others[0]
        # A rank may have noticed before the driver: the one that died is the cause, not the one that missed it.
        losses = [(r, e) for r, e in self.failures.items() if isinstance(e, PeerLost)]
        dead = [(r, e) for r, e in losses if e.rank == r]
        rank, cause = dead[0] if dead else (rank, cause)
        waits = [e.waiting for r, e in losses if r != rank and e.waiting]
        return PeerLost(cause.rank, cause.reason, "; ".join(waits) or cause.waiting)
