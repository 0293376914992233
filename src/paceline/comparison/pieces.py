"""What a comparison says of strategies that hold the model in pieces: their bubbles, and what memory they need."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.comparison.reason import Seen
from paceline.costs.units import format_bytes
from paceline.diagnosis.peak import Peak
from paceline.diagnosis.words import kinds

__all__ = ["about_bubbles", "about_memory"]

_WORTH_TELLING = 0.05
"""Of a step: smaller bubbles are not worth a sentence."""
_MUCH_LESS = 1.25
"""A strategy whose largest rank holds so many times less than another's is worth a sentence."""


def about_bubbles(looked: Sequence[Seen]) -> list[str]:
    """The share of a step in which stages do not compute, of each strategy that has stages."""
    shares = [(seen.name, seen.diagnosis.stages.bubble) for seen in looked if seen.diagnosis.stages]
    if max((share for _, share in shares), default=0.0) < _WORTH_TELLING:
        return []
    told = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares, key=lambda each: each[1]))
    return [f"Bubbles, the share of a step in which stages do not compute: {told}."]


def about_memory(looked: Sequence[Seen]) -> list[str]:
    """Which strategy needs the least memory a rank, and which the most; if some rank holds a part of the model."""
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
