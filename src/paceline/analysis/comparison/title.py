"""The title of a page about runs: the task, the cluster and the winner in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from paceline.analysis.comparison.entry import Entry, what_differs
from paceline.analysis.comparison.table import rows
from paceline.analysis.comparison.verdict import order


def title(entries: Sequence[Entry], task: str = "") -> str:
    """Return a title such as "digits.py on 4 local workers: async wins". `task` is the task's name, if it has one."""
    clusters = Counter(run.cluster for entry in entries for run in entry.runs)
    where = _brief(clusters.most_common(1)[0][0]) if clusters else "no workers"
    what = task or (entries[0].name if len(entries) == 1 else f"{len(entries)} strategies")
    return f"{what} on {where}{_winner(entries)}"


def _brief(cluster: str) -> str:
    """Return what a cluster is, without its settings: the page lists these below the title."""
    return cluster.partition(",")[0].partition(" (")[0]


def _winner(entries: Sequence[Entry]) -> str:
    ended = [entry for entry in entries if entry.runs]
    if len(ended) < 2:
        return ""
    best = [] if what_differs(entries) else order(rows(entries))
    if not best:
        return ": no winner"
    return f": {best[0].name} {'is the fastest' if best[0].target is None else 'wins'}"
