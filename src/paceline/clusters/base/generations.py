"""The generations of members that a run has had, for its result."""

from __future__ import annotations

from paceline.clusters.base.members import Membership
from paceline.runs.generation import Generation


class GenerationLog:
    """The generations so far. Times are seconds of the run."""

    def __init__(self, everybody: Membership) -> None:
        self.all = [Generation(number=0, members=everybody.members)]
        self._lost: dict[int, float] = {}

    def note_loss(self, rank: int, now_s: float) -> None:
        self._lost[rank] = now_s

    def begin(self, membership: Membership, now_s: float) -> None:
        gone = [rank for rank in self.all[-1].members if rank not in membership.members]
        self.all.append(
            Generation(
                number=membership.generation,
                members=membership.members,
                first_step=membership.first,
                lost=tuple(gone),
                detected_s=min(self._lost[rank] for rank in gone),
                began_s=now_s,
            )
        )
