"""Who is slow, by computing and by links, what that costs, and what a step would take without it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.diagnosis.activities import Floats, Indices, read_activities
from paceline.diagnosis.blame import Blame, find_blame
from paceline.diagnosis.messages import match_messages
from paceline.diagnosis.peak import Peak, peak_of
from paceline.diagnosis.stages import Stages, stages_of
from paceline.diagnosis.what_if import beginning_s, step_ratio
from paceline.trace.spans import COMPUTING, Kind, Spans

if TYPE_CHECKING:
    from paceline.run import Run

__all__ = ["Diagnosis", "SlowLink", "SlowRank", "diagnose"]

SLOW = 1.25
"""A rank is slow if it takes so many times as long as the others' median; less may be chance."""
SLOW_LINK = 1.5
"""The same of messages, whose times vary more."""
_OFTEN_CANCELLED = 0.2
"""Computations that were cancelled do not tell how long they would have taken; with so many, no replay does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """The rank that takes the longest to compute a gradient."""

    rank: int
    seconds: float
    """The median of its computations that ended; infinite if none did."""
    others_s: float
    """The median of the other ranks' medians."""
    cancelled_share: float
    """Of its computations, those that were cancelled."""
    in_pieces: bool = False
    """Whether the model is computed in segments: then its seconds are those of all passes of a step."""

    @property
    def factor(self) -> float:
        return self.seconds / self.others_s

    @property
    def is_slow(self) -> bool:
        return self.factor >= SLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """The rank whose messages travel the longest, whether it sends or receives them."""

    rank: int
    factor: float
    """How many times as long as others of their size, at the median."""

    @property
    def is_slow(self) -> bool:
        return self.factor >= SLOW_LINK


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a run's trace says about who is slow."""

    step_s: float
    """The run's mean seconds a step."""
    idle_share: float
    """Of the workers' time, evaluation left out."""
    blame: Blame
    compute: SlowRank | None
    """None where fewer than two ranks compute."""
    link: SlowLink | None
    """None where there are no other links to hold it against, or nobody waited for a message."""
    step_without_s: float | None
    """What a step would take if the slowest to compute were as quick as the others' median. None: nobody is slow,
    or the trace does not tell."""
    holds: Sequence[str] = ()
    """What each rank holds of the model, in words, where it holds a part of it."""
    stages: Stages | None = None
    """None where ranks do not hold different stages."""
    peak: Peak | None = None
    """The rank that holds most. None of a run that does not know of its memory."""

    def who(self, rank: int) -> str:
        """A rank, with what it holds."""
        holds = self.holds[rank] if rank < len(self.holds) else ""
        return f"rank {rank} ({holds})" if holds else f"rank {rank}"


def diagnose(run: Run) -> Diagnosis:
    """Read a run's trace."""
    spans = run.trace.spans
    blame = find_blame(spans, run.trace.seconds)
    slowest = _slowest(spans)
    without_s = None
    if slowest is not None and slowest.is_slow and slowest.cancelled_share < _OFTEN_CANCELLED:
        ratio = step_ratio(spans, slowest.rank, 1 / slowest.factor)
        without_s = None if ratio is None else run.step_seconds * ratio
    return Diagnosis(
        step_s=run.step_seconds,
        idle_share=blame.idle_s / blame.time_s if blame.time_s else 0.0,
        blame=blame,
        compute=slowest,
        link=_slowest_link(spans),
        step_without_s=without_s,
        holds=run.holds,
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


def _has_passes(spans: Spans) -> bool:
    return len(spans.of(Kind.FORWARD)) > 0


def _median_s(spans: Spans) -> float:
    """Of a rank's gradients; of one that holds a part of the model, of all that it computes in a step."""
    computed = spans.of(*COMPUTING)
    if not len(computed):
        return np.inf
    seconds = computed["end_s"] - computed["start_s"]
    if _has_passes(spans):
        _, step = np.unique(computed["step"], return_inverse=True)
        seconds = np.bincount(step, weights=seconds)
    return float(np.median(seconds))


def _slowest_link(spans: Sequence[Spans]) -> SlowLink | None:
    """By how long the quickest message of each size took between two ranks; others may have stood in a queue."""
    activities = read_activities(spans, beginning_s(spans))
    messages = match_messages(activities)
    waited = activities.waited[messages.receipt]  # nobody can tell of the others how long they travelled
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
    """How long messages to and from a rank take, by those of their size between others. None: there are none."""
    mine = (kinds[:, :2] == rank).any(axis=1)
    factors = []
    for size in np.unique(kinds[mine, 2]):
        of_size = kinds[:, 2] == size
        others_s = travel_s[of_size & ~mine]
        if len(others_s) and np.median(others_s) > 0:
            factors.append(float(np.median(travel_s[of_size & mine]) / np.median(others_s)))
    return statistics.median(factors) if factors else None
