"""The reason that a strategy wins, in one sentence derived from the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.analysis.comparison.entry import YARDSTICK
from paceline.analysis.comparison.table import Row
from paceline.analysis.diagnosis.diagnose import Diagnosis
from paceline.trace.spans import COMPUTING, Kind

if TYPE_CHECKING:
    from paceline.runs.run import Run

_MUCH = 0.1
"""Smallest fraction of the workers' time for which waiting or communicating is given as the reason."""
_FEWER = 1.1
"""Smallest ratio of sample counts that is given as the reason."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry with its row, its typical run and its diagnosis."""

    row: Row
    run: Run
    """The typical run of the entry."""
    diagnosis: Diagnosis

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def never_communicated(self) -> bool:
        """Whether several workers trained separate models.

        Such workers report their distance from the mean, and send nothing.
        """
        spans = self.run.trace.spans
        are_separate = any("consensus" in record.extra for record in self.run.history)
        return (
            len(spans) > 1
            and are_separate
            and not any(each.of(Kind.SEND, Kind.RECEIVE).size for each in spans)
        )

    def waits_for(self, rank: int) -> float:
        """Return the fraction of the workers' time in which they wait for a rank."""
        return self.diagnosis.idle_share * self.diagnosis.blame.share(rank)

    def who(self, rank: int) -> str:
        """Return the description of a rank."""
        serves = any(each.rank == rank and each.role == "server" for each in self.run.trace.spans)
        return f"its server (rank {rank})" if serves else self.diagnosis.who(rank)

    def discards(self, rank: int) -> float:
        """Return the fraction of a rank's computations that were cancelled."""
        spans = [each for each in self.run.trace.spans if each.rank == rank]
        cancelled = sum(len(each.of(Kind.CANCELLED)) for each in spans)
        return cancelled / max(1, cancelled + sum(len(each.of(*COMPUTING)) for each in spans))


def reason(winner: Seen, others: Sequence[Seen]) -> str | None:
    """Return why the winner wins. `others` begins with the second best. None if the figures give no reason."""
    return next((text for text in _reasons(winner, others) if text), None)


def _reasons(winner: Seen, others: Sequence[Seen]) -> Iterator[str | None]:
    """Yield possible reasons, the most important first."""
    yield _waiting(winner, others)
    for loser in others[:1]:
        yield _samples(winner, loser)
        yield _communicating(winner, loser)
        yield _pace(winner, loser)


def _waiting(winner: Seen, others: Sequence[Seen]) -> str | None:
    """Return the reason if another strategy waits long for one rank, and the winner does not."""
    pairs = [(loser, loser.diagnosis.blame.worst) for loser in others]
    waits = [(loser.waits_for(rank), loser, rank) for loser, rank in pairs if rank is not None]
    share, loser, rank = max(waits, key=lambda wait: wait[0], default=(0.0, winner, 0))
    if share < _MUCH or winner.waits_for(rank) > share / 2:
        return None
    return f"{loser.name} waits {share:.0%} of the time for {loser.who(rank)}; {_instead(winner, rank)}."


def _instead(winner: Seen, rank: int) -> str:
    if winner.run.strategy == YARDSTICK:
        return f"{winner.name} has one worker and never waits"
    discarded = winner.discards(rank)
    if discarded > 1 - _MUCH:
        return f"{winner.name} discards it"
    if discarded > _MUCH:
        return f"{winner.name} discards {discarded:.0%} of its gradients"
    share = winner.waits_for(rank)
    return f"{winner.name} does not" if share < _MUCH / 10 else f"{winner.name} only {share:.0%}"


def _samples(winner: Seen, loser: Seen) -> str | None:
    """Return the reason if the loser needs more samples to reach the target."""
    few, many = _samples_to_target(winner.run), _samples_to_target(loser.run)
    if few is None or many is None or many < _FEWER * few:
        return None
    stale = loser.row.staleness
    why = f" (mean staleness of its gradients: {stale:.1f} updates)" if stale and stale >= _MUCH else ""
    return f"{winner.name} reaches the target with {few:,} samples; {loser.name} needs {many:,}{why}."


def _communicating(winner: Seen, loser: Seen) -> str | None:
    much, little = loser.row.communicate_share or 0.0, winner.row.communicate_share or 0.0
    if much < _MUCH or little > much / 2:
        return None
    return f"{loser.name} communicates {much:.0%} of the time; {winner.name} {little:.0%}."


def _pace(winner: Seen, loser: Seen) -> str | None:
    quick, slow = winner.row.samples_per_s, loser.row.samples_per_s
    if quick is None or slow is None or quick < slow:
        return None
    return (
        f"{winner.name} processes {quick:,.0f} samples a second; {loser.name}, the second best, {slow:,.0f}."
    )


def _samples_to_target(run: Run) -> int | None:
    record = run.record_at_target
    return None if record is None else record.samples
