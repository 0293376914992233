"""Incremental copies of a rank's records, sent to the driver step by step. They survive the death of the rank."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from paceline.clusters.base.outcome import Outcome

News: TypeAlias = dict[str, list[Any]]
"""New entries of an outcome's lists, by list name."""


_DROPPED = "dropped"


class Teller:
    """Tracks which entries of an outcome have been sent."""

    __slots__ = ("_outcome", "_told")

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._told = {"updates": 0, "losses": 0, "logged": 0, "records": 0}

    def take(self) -> News:
        """Return the entries for the run's history that have not been sent yet."""
        # With independent updates, the update records contain everything else.
        names = ("updates",) if self._outcome.updates else ("losses", "logged", "records")
        news: News = {}
        for name in names:
            written = getattr(self._outcome, name)
            new = written[self._told[name] :]
            if new or name != "records":
                news[name] = new
            self._told[name] = len(written)
        return news

    def drop(self, first: int) -> News:
        """Return news that drops the entries of steps from `first` on. They have been removed from the outcome."""
        self._told = {name: len(getattr(self._outcome, name)) for name in self._told}
        return {_DROPPED: [first]}


def drop_entries(outcome: Outcome, first: int) -> None:
    """Remove the entries of steps from `first` on."""
    outcome.losses[:] = [each for each in outcome.losses if each[0] < first]
    outcome.logged[:] = [each for each in outcome.logged if each[0] < first]
    outcome.records[:] = [each for each in outcome.records if each["step"] <= first]


def add_former(outcome: Outcome, former: Outcome) -> None:
    """Add the records of a lost rank to those of the process that was started in its place."""
    outcome.losses[:0] = former.losses
    outcome.logged[:0] = former.logged
    outcome.records[:0] = former.records
    outcome.lost[:0] = former.lost


def enter_news(outcome: Outcome, news: News) -> None:
    """Append received entries to an outcome."""
    for first in news.pop(_DROPPED, ()):
        drop_entries(outcome, first)
    for name, entries in news.items():
        getattr(outcome, name).extend(tuple(each) if isinstance(each, list) else each for each in entries)


def write_news(news: News) -> bytes:
    """Encode entries as one line."""
    return _encode(news).encode() + b"\n"


def read_news(line: bytes) -> News:
    news: News = json.loads(line)
    return news


def _plain(value: Any) -> Any:
    """Convert a numpy or torch number reported by a strategy."""
    return value.item()


# Created once: creating the encoder takes as long as encoding a line.
_encode = json.JSONEncoder(default=_plain, check_circular=False).encode
