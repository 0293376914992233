"""What a rank has written down since it last told its driver: told step by step, it is not lost with the rank."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from paceline.clusters.outcome import Outcome

__all__ = ["News", "Teller", "enter_news", "read_news", "write_news"]

News: TypeAlias = dict[str, list[Any]]
"""New entries of some of an outcome's lists, by the name of the list."""


class Teller:
    """Remembers how much of an outcome has been told."""

    __slots__ = ("_outcome", "_told")

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._told = {"updates": 0, "losses": 0, "logged": 0}

    def take(self) -> News:
        """What the run's history needs of this rank, and has not been told."""
        # The record of an update at the rank's own pace has all the rest in it.
        names = ("updates",) if self._outcome.updates else ("losses", "logged")
        news: News = {}
        for name in names:
            written = getattr(self._outcome, name)
            news[name] = written[self._told[name] :]
            self._told[name] = len(written)
        return news


def enter_news(outcome: Outcome, news: News) -> None:
    """Write down what was told."""
    for name, entries in news.items():
        getattr(outcome, name).extend(tuple(each) if isinstance(each, list) else each for each in entries)


def write_news(news: News) -> bytes:
    """One line."""
    return _encode(news).encode() + b"\n"


def read_news(line: bytes) -> News:
    news: News = json.loads(line)
    return news


def _plain(value: Any) -> Any:
    """What a strategy has reported may be a number of numpy or torch."""
    return value.item()


# Made once: to make it takes as long as to write a line.
_encode = json.JSONEncoder(default=_plain, check_circular=False).encode
