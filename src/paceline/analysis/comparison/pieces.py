"""Sentences about strategies that split the model: their bubbles and their memory."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.analysis.comparison.reason import Seen
from paceline.analysis.diagnosis.peak import Peak
from paceline.analysis.diagnosis.words import kinds
from paceline.costs.units import format_bytes

_WORTH_TELLING = 0.05
"""Smallest fraction of a step for which bubbles are reported."""
_MUCH_LESS = 1.25
"""Smallest ratio of peak memory between two strategies that is reported."""


def about_bubbles(looked: Sequence[Seen]) -> list[str]:
    """Return the fraction of a step in which stages do not compute, for each strategy with stages."""
    shares = [(seen.name, seen.diagnosis.stages.bubble) for seen in looked if seen.diagnosis.stages]
    if max((share for _, share in shares), default=0.0) < _WORTH_TELLING:
        return []
    told = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares, key=lambda each: each[1]))
    return [f"Bubbles (fraction of a step in which stages do not compute): {told}."]


def about_memory(looked: Sequence[Seen]) -> list[str]:
    """Return the strategies with the least and the most memory per rank, if some rank holds a part of the model."""
    known = [(seen, seen.diagnosis.peak) for seen in looked if seen.diagnosis.peak is not None]
    if not any(any(seen.diagnosis.holds) for seen, _ in known):
        return []
    (least, low), (most, high) = (pick(known, key=lambda each: each[1].total_bytes) for pick in (min, max))
    if high.total_bytes < _MUCH_LESS * low.total_bytes:
        return []
    return [
        f"{least.name} needs the least memory: {_held(least, low)}; {most.name} the most: {_held(most, high)}."
    ]


def _held(seen: Seen, peak: Peak) -> str:
    return f"{seen.who(peak.rank)} holds {format_bytes(peak.total_bytes)} at the peak, {kinds(peak)}"
