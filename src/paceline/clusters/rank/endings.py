"""When a leg, or the run, ends before its time: the reporter decides it, where all ranks can still hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank

__all__ = ["Endings"]

_MARGIN = 8
"""Where workers go at their own pace: so many updates of each are left to them to hear that a leg ends."""


class Endings:
    """One rank's part. A step that is said to be the last must be one that no rank has ended."""

    __slots__ = ("_has_said", "_rank", "_stops", "observes")

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.observes = False
        """Whether workers have steps of their own: they can end only where they meet."""
        self._stops = False  # whether the run is to end where they meet next
        self._has_said = False  # that this leg ends

    def begin_leg(self) -> None:
        self._has_said = False

    def after_step(self, step: int, *, ends: bool) -> None:
        """The reporter has ended a step; `ends`: its record is a reason to end the run."""
        if self.observes:
            self._stops = self._stops or ends
            return
        # The others may have begun the next step, but none can have ended it without this rank: so that step is the
        # last, for everybody, in every world.
        if ends:
            self._rank.end_after(step + 1)
        self._keep_after(step + 1)

    def at_meeting(self, step: int, *, ends: bool = False) -> None:
        """All workers have stopped after this step, so it can be made the last."""
        self._stops = self._stops or ends
        if self._stops:
            self._rank.end_after(step)
        self._keep_after(step)

    def after_own_update(self, number: int, *, ends: bool) -> None:
        """The reporter has made update `number` of all, at its own pace."""
        if ends:
            # Not with this leg's last update: others may have begun the next leg already.
            self._rank.end_after(number + 1 if number + 1 == self._rank.leg_end else number)

    def before_own_update(self, number: int) -> None:
        """The same, before it looks at the model: the others go on meanwhile."""
        last = number + _MARGIN * len(self._rank.workers)
        if last + 1 < self._rank.leg_end:  # or else others may have ended this leg before they hear of it
            self._keep_after(last)

    def meets_at(self, step: int) -> bool:
        """Whether workers that take steps of their own meet after this one, so that the reporter can say it."""
        rank = self._rank
        every = rank.job.legs.meet_every
        return rank.keeper is not None and not rank.own_pace and every > 0 and (step + 1) % every == 0

    def reaches_target(self, metric: float | None) -> bool:
        job = self._rank.job
        if metric is None or not job.stop_at_target or job.task is None:
            return False
        return job.task.reaches_target(metric)

    def _keep_after(self, step: int) -> None:
        """End the leg after a step, if it is time for a checkpoint, or if somebody has asked the run to stop."""
        rank = self._rank
        if rank.keeper is None or self._has_said:
            return
        if rank.stop_wanted or rank.keeper.is_due:
            self._has_said = True
            rank.end_leg_after(rank.job.legs.rounded(step + 1) - 1, stops=rank.stop_wanted)
