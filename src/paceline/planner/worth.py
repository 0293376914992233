"""Whether more workers are worth it: a gain that may be an error of the predictions does not justify them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.planner.entry import Entry

UNCERTAINTY = 0.05
"""Relative difference of two predicted times below which the order of two configurations is not known."""

_TIE = 0.001
"""Relative difference of two times that are regarded as equal."""

TIMED = ("step", "time to target")
"""Goals for which workers are free, so that a plan would use more of them for any gain."""


def uncertainty(one: Entry, other: Entry) -> float:
    """Return the relative difference of two times below which either configuration may be the faster one.

    Strategies with the weights of `single` need the same number of steps. Of others that number is estimated too.
    """
    spreads = [
        each.target.spread for each in (one, other) if each.target is not None and not each.equals_single
    ]
    return max([UNCERTAINTY, *spreads])


def fewest_workers_first(ranked: Sequence[Entry], value: Callable[[Entry], float]) -> list[Entry]:
    """Return the entries with the preferred one at the first place: of those that may be the fastest, the one with the
    fewest workers, and of equal ones `single`, or the one with the fewest parameters."""
    if not ranked:
        return []
    fastest = ranked[0]
    candidates = [each for each in ranked if value(each) <= (1 + uncertainty(fastest, each)) * value(fastest)]
    fewest = min(each.workers for each in candidates)
    least = min(value(each) for each in candidates if each.workers == fewest)
    equal = [each for each in candidates if each.workers == fewest and value(each) <= (1 + _TIE) * least]
    preferred = min(equal, key=lambda each: (each.family != "single", each.strategy.count("="), value(each)))
    return [preferred, *(each for each in ranked if each is not preferred)]
