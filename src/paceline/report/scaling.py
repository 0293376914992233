"""Speed-up by the number of workers, for strategies that ran with several numbers of workers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from paceline.analysis.comparison.entry import Entry, what_differs
from paceline.runs.run import Run


def worker_count(run: Run) -> int:
    """Return the number of ranks that compute gradients: all except dedicated servers."""
    return sum(each.role != "server" for each in run.trace.spans)


def scaling(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """Return a line for each strategy that ran with at least two numbers of workers; None if there is no such strategy.

    The speed is in samples per second, the median of the repeats. It is relative to one worker or, if no run has one,
    to the strategy's own smallest number of workers. Runs of different tasks have no line.
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
    """Return samples per second by strategy and number of workers."""
    speeds: dict[str, dict[int, list[float]]] = {}
    for run in (run for entry in entries for run in entry.runs):
        if run.history and run.seconds > 0:
            by_workers = speeds.setdefault(run.strategy, {})
            by_workers.setdefault(worker_count(run), []).append(run.history[-1].samples / run.seconds)
    return speeds


def _first_places(entries: Sequence[Entry]) -> dict[int, str]:
    """Return each strategy with the index of its first entry, which determines colour and dashes."""
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
