"""Early end of a generation or of the run. The reporter decides it while all ranks can still be notified."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank

_MARGIN = 8
"""Updates left to each independent worker, so that all are notified before a generation ends."""


class Endings:
    """Early end, on one rank. When a step is announced as the last one, no rank may have completed it."""

    __slots__ = ("_has_announced", "_rank", "_stops", "observes")

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.observes = False
        """Whether workers run independently: they can end only at a meeting."""
        self._stops = False  # whether the run ends at the next meeting
        self._has_announced = False  # whether the reporter has ended this generation

    def begin_generation(self) -> None:
        self._has_announced = False

    def after_step(self, step: int, *, ends: bool) -> None:
        """Handle the end of a step on the reporter.

        `ends` is True if the record of the step requires the end of the run.
        """
        if self.observes:
            self._stops = self._stops or ends
            return
        # Other ranks may have begun the next step. None can complete it without this rank. So the next step is the last
        # one for all ranks, in every cluster. If ranks begin several steps at a time, it is the one after those.
        job = self._rank.job
        last = step + 1 + job.declared.steps_ahead(job.workers)
        if ends:
            self._rank.end_after(last)
        self._keep_after(last)

    def at_meeting(self, step: int, *, ends: bool = False) -> None:
        """Handle a meeting on the reporter. All workers have stopped after this step, so it can be the last one."""
        self._stops = self._stops or ends
        if self._stops:
            self._rank.end_after(step)
        self._keep_after(step)

    def after_own_update(self, number: int, *, ends: bool) -> None:
        """Handle an independent update of the reporter. `number` counts the updates of all ranks."""
        if ends:
            # Not with the last update of this generation: other ranks may have begun the next generation already.
            self._rank.end_after(number + 1 if number + 1 == self._rank.generation_end else number)

    def before_own_update(self, number: int) -> None:
        """End the generation before an evaluation, if due. The other workers continue during the evaluation."""
        last = number + _MARGIN * len(self._rank.workers)
        if last + 1 < self._rank.generation_end:  # otherwise another rank may end this generation first
            self._keep_after(last)

    def meets_at(self, step: int) -> bool:
        """Return whether independent workers wait for each other after this step, so that the reporter can end a
        generation."""
        rank = self._rank
        every = rank.job.generations.meet_every
        return (
            rank.checkpoint_writer is not None and not rank.own_pace and every > 0 and (step + 1) % every == 0
        )

    def reaches_target(self, metric: float | None) -> bool:
        job = self._rank.job
        if metric is None or not job.stop_at_target or job.task is None:
            return False
        return job.task.reaches_target(metric)

    def _keep_after(self, step: int) -> None:
        """End the generation after a step, if a checkpoint is due or if the run has been asked to stop."""
        rank = self._rank
        if rank.checkpoint_writer is None or self._has_announced:
            return
        if rank.stop_wanted or rank.checkpoint_writer.is_due:
            self._has_announced = True
            rank.end_generation_after(rank.job.generations.rounded(step + 1) - 1, stops=rank.stop_wanted)
