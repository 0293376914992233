"""The generations of members that a run has had, for its result."""

from __future__ import annotations

from paceline.clusters.base.job import Job
from paceline.clusters.base.members import Membership, too_few
from paceline.runs.generation import Generation


class GenerationLog:
    """The generations so far. Times are seconds of the run."""

    def __init__(self, everybody: Membership) -> None:
        self.all = [Generation(number=0, members=everybody.members)]
        self._noted: dict[int, float] = {}

    def note(self, rank: int, now_s: float) -> None:
        """Record when a rank is lost, or is ready to join."""
        self._noted[rank] = now_s

    def begin(self, membership: Membership, now_s: float) -> None:
        stay = set(membership.members) - set(membership.joined)
        gone = [rank for rank in self.all[-1].members if rank not in stay]
        self.all.append(
            Generation(
                number=membership.generation,
                members=membership.members,
                first_step=membership.first,
                lost=tuple(gone),
                joined=membership.joined,
                repeated_steps=membership.repeated,
                detected_s=min(self._noted[rank] for rank in {*gone, *membership.joined}),
                began_s=now_s,
            )
        )


class Attendance:
    """Members of a run with a strategy that handles lost workers itself. The other workers are not interrupted."""

    def __init__(self, job: Job) -> None:
        assert job.min_workers is not None
        self._workers = job.workers
        self._fewest = job.min_workers
        self._present = Membership(generation=0, members=tuple(range(job.ranks)))
        self.generations = GenerationLog(self._present)

    @classmethod
    def of(cls, job: Job) -> Attendance | None:
        """Return the members. None if the run has no `min_workers`, or if its members regroup."""
        return None if job.min_workers is None or job.regroups else cls(job)

    def lose(self, rank: int, step: int, now_s: float) -> str:
        """Record a loss that was detected in a step. Return why the run cannot continue. Empty if it can."""
        members = tuple(each for each in self._present.members if each != rank)
        number = self._present.generation + 1
        self._present = Membership(generation=number, members=members, first=step)
        self.generations.note(rank, now_s)
        self.generations.begin(self._present, now_s)
        left = sum(each < self._workers for each in members)
        return "" if left >= self._fewest else too_few(left, self._fewest)
