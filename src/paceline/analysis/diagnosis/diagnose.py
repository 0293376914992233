"""Finds slow ranks and links, what they cost, and the step time without the slowest rank."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from paceline.analysis.diagnosis.activities import Floats, Indices, read_activities
from paceline.analysis.diagnosis.blame import Blame, find_blame
from paceline.analysis.diagnosis.messages import match_messages
from paceline.analysis.diagnosis.peak import Peak, peak_of
from paceline.analysis.diagnosis.stages import Stages, stages_of
from paceline.analysis.diagnosis.what_if import beginning_s, step_ratio
from paceline.trace.spans import COMPUTING, Kind, Spans

if TYPE_CHECKING:
    from paceline.runs.run import Run

SLOW = 1.25
"""A rank is slow if it takes at least this many times the others' median. A smaller factor may be random."""
SLOW_LINK = 1.5
"""The same threshold for messages. Their times vary more."""
_SHORTER = 0.98
_OFTEN_CANCELLED = 0.2
"""Maximum fraction of cancelled computations for a replay. Their full duration is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """The rank that takes the longest to compute a gradient."""

    rank: int
    seconds: float
    """Median of its completed computations; infinite if none completed."""
    others_s: float
    """Median of the other ranks' medians."""
    cancelled_share: float
    """Fraction of its computations that were cancelled."""
    in_pieces: bool = False
    """Whether the model is computed in segments. `seconds` then covers all passes of a step."""

    @property
    def factor(self) -> float:
        return self.seconds / self.others_s

    @property
    def is_slow(self) -> bool:
        return self.factor >= SLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """The rank with the slowest messages, sent or received."""

    rank: int
    factor: float
    """Median ratio of travel times to other messages of the same size."""

    @property
    def is_slow(self) -> bool:
        return self.factor >= SLOW_LINK


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of the analysis of a run's trace."""

    step_s: float
    """Mean seconds per step of the run."""
    idle_share: float
    """Idle fraction of the workers' time, without evaluation."""
    blame: Blame
    compute: SlowRank | None
    """None if fewer than two ranks compute."""
    link: SlowLink | None
    """None if there are no other links to compare with, or no rank waited for a message."""
    step_without_s: float | None
    """Step time if the slowest rank computed as fast as the others' median.

    None if no rank is slow, or if the trace is insufficient.
    """
    varying: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Ranks whose computations vary much: the median, and the time that one computation in ten exceeds."""
    holds: Sequence[str] = ()
    """Description of the part of the model on each rank, if it holds a part."""
    has_causes: bool = True
    """Whether the trace has message ids. Without them, the fields that depend on single messages are None."""
    stages: Stages | None = None
    """None if ranks do not hold different stages."""
    peak: Peak | None = None
    """The rank with the largest memory; None if the run has no memory figures."""

    @property
    def improves(self) -> bool:
        """Whether a step would be shorter without the slowest rank.

        The threshold allows for the error of a replay, about one percent.
        """
        return self.step_without_s is not None and self.step_without_s < _SHORTER * self.step_s

    def cost(self, rank: int) -> float:
        """Return the fraction of the workers' time in which they wait because of this rank."""
        return self.idle_share * self.blame.share(rank)

    def who(self, rank: int) -> str:
        """Return the name of a rank, with the part of the model that it holds."""
        holds = self.holds[rank] if rank < len(self.holds) else ""
        return f"rank {rank} ({holds})" if holds else f"rank {rank}"


def diagnose(run: Run) -> Diagnosis:
    """Analyse the trace of a run."""
    spans = run.trace.spans
    blame = find_blame(spans, run.trace.seconds)
    slowest = _slowest(spans)
    without_s = None
    has_causes = run.trace.has_causes
    if has_causes and slowest and slowest.is_slow and slowest.cancelled_share < _OFTEN_CANCELLED:
        ratio = step_ratio(spans, slowest.rank, 1 / slowest.factor)
        without_s = None if ratio is None else run.step_seconds * ratio
    return Diagnosis(
        step_s=run.step_seconds,
        idle_share=blame.idle_s / blame.time_s if blame.time_s else 0.0,
        blame=blame,
        compute=slowest,
        link=_slowest_link(spans),
        step_without_s=without_s,
        varying=_varying(spans),
        holds=run.holds,
        has_causes=has_causes,
        stages=stages_of(run),
        peak=peak_of(run),
    )


def _slowest(spans: Sequence[Spans]) -> SlowRank | None:
    computing = [each for each in spans if len(each.of(*COMPUTING, Kind.CANCELLED))]
    medians = {each.rank: _median_s(each) for each in computing}
    if len(medians) < 2:
        return None
    worst = max(medians, key=lambda rank: (medians[rank], rank))
    others_s = statistics.median(s for rank, s in medians.items() if rank != worst)
    if not 0 < others_s < np.inf:
        return None
    spans_of_worst = next(each for each in computing if each.rank == worst)
    cancelled = len(spans_of_worst.of(Kind.CANCELLED))
    share = cancelled / (cancelled + len(spans_of_worst.of(*COMPUTING)))
    return SlowRank(
        rank=worst,
        seconds=medians[worst],
        others_s=others_s,
        cancelled_share=share,
        in_pieces=_has_passes(spans_of_worst),
    )


def _varying(spans: Sequence[Spans]) -> dict[int, tuple[float, float]]:
    found = {}
    for each in spans:
        computed = each.of(Kind.COMPUTE)
        if len(computed):
            median_s, long_s = np.percentile(computed["end_s"] - computed["start_s"], (50, 90)).tolist()
            if long_s >= SLOW * median_s:
                found[each.rank] = (median_s, long_s)
    return found


def _has_passes(spans: Spans) -> bool:
    return len(spans.of(Kind.FORWARD)) > 0


def _median_s(spans: Spans) -> float:
    """Return the median time of a rank's gradients, or of its work per step if it holds a part of the model."""
    computed = spans.of(*COMPUTING)
    if not len(computed):
        return np.inf
    seconds = computed["end_s"] - computed["start_s"]
    if _has_passes(spans):
        _, step = np.unique(computed["step"], return_inverse=True)
        seconds = np.bincount(step, weights=seconds)
    return float(np.median(seconds))


def _slowest_link(spans: Sequence[Spans]) -> SlowLink | None:
    """Find the slowest link by the fastest message of each size between two ranks. Others may have been queued."""
    activities = read_activities(spans, beginning_s(spans))
    messages = match_messages(activities)
    waited = activities.waited[messages.receipt]  # without a waiting receiver the travel time is unknown
    ends = (
        activities.rank[messages.send],
        activities.rank[messages.receipt],
        activities.nbytes[messages.send],
    )
    kinds, first = np.unique(np.column_stack(ends)[waited], axis=0, return_index=True)
    travel_s = messages.travel_s[waited][first]
    factors = {rank: _link_factor(kinds, travel_s, rank) for rank in np.unique(kinds[:, :2]).tolist()}
    known = {rank: factor for rank, factor in factors.items() if factor is not None}
    if not known:
        return None
    worst = max(known, key=lambda rank: known[rank])
    return SlowLink(rank=worst, factor=known[worst])


def _link_factor(kinds: Indices, travel_s: Floats, rank: int) -> float | None:
    """Return the ratio of travel times to and from a rank to others of the same size; None if there are none."""
    mine = (kinds[:, :2] == rank).any(axis=1)
    factors = []
    for size in np.unique(kinds[mine, 2]):
        of_size = kinds[:, 2] == size
        others_s = travel_s[of_size & ~mine]
        if len(others_s) and np.median(others_s) > 0:
            factors.append(float(np.median(travel_s[of_size & mine]) / np.median(others_s)))
    return statistics.median(factors) if factors else None
