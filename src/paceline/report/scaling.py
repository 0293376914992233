"""Speed-up against the number of workers, where a strategy was run with several numbers of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from paceline.comparison.entry import Entry, what_differs
from paceline.run import Run

__all__ = ["scaling", "worker_count"]


def worker_count(run: Run) -> int:
    """Ranks that compute gradients: all but those that only serve."""
    return sum(each.role != "server" for each in run.trace.spans)


def scaling(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """A line for each strategy that was run with at least two numbers of workers; None if there is no such strategy.

    The speed is samples a second, the median of the repeats. It is divided by that of one worker or, if none ran alone,
    by that of the strategy's own smallest number of workers. Runs that learned different things have no such line.
    """
    if what_differs(entries):
        return None
    speeds = _speeds(entries)
    lines = {name: by_workers for name, by_workers in speeds.items() if len(by_workers) > 1}
    if not lines:
        return None
    alone = [speed for by_workers in speeds.values() for speed in by_workers.get(1, [])]
    places = {name: place for place, name in _first_places(entries).items()}
    return {
        "base": "one worker" if alone else "its smallest number of workers",
        "lines": [_line(name, places[name], lines[name], alone) for name in lines],
    }


def _speeds(entries: Sequence[Entry]) -> dict[str, dict[int, list[float]]]:
    """Samples a second by strategy and number of workers."""
    speeds: dict[str, dict[int, list[float]]] = {}
    for run in (run for entry in entries for run in entry.runs):
        if run.history and run.seconds > 0:
            by_workers = speeds.setdefault(run.strategy, {})
            by_workers.setdefault(worker_count(run), []).append(run.history[-1].samples / run.seconds)
    return speeds


def _first_places(entries: Sequence[Entry]) -> dict[int, str]:
    """The strategies, each at the place of its first entry, whose colour and dashes it wears."""
    names: dict[int, str] = {}
    for place, entry in enumerate(entries):
        for run in entry.runs[:1]:
            if run.strategy not in names.values():
                names[place] = run.strategy
    return names


def _line(name: str, place: int, by_workers: dict[int, list[float]], alone: list[float]) -> dict[str, Any]:
    workers = sorted(by_workers)
    base = median(alone) if alone else median(by_workers[workers[0]])
    return {
        "name": name,
        "entry": place,
        "workers": workers,
        "speed_up": [median(by_workers[count]) / base for count in workers],
        "ideal": [count if alone else count / workers[0] for count in workers],
    }
