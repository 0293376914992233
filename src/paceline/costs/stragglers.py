"""Stragglers: ranks that are slower by a factor, or by a random delay before each computation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral

from paceline.costs import times
from paceline.costs.times import Times
from paceline.costs.units import check_positive
from paceline.errors import ConfigurationError

SLOW_FORMS = 'write rank:factor, such as "3:4x" or "3:4x,1:2x"'
DELAY_FORMS = 'write "exp:mean=50ms" for every rank, or "2=exp:mean=50ms" for rank 2'

_SLOW = re.compile(r"\s*(\d+)\s*:\s*(\d+\.?\d*|\.\d+)\s*x?\s*", re.ASCII)
_DELAY_OF_RANK = re.compile(r"\s*(\d+)\s*=(.*)", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """Slow ranks, which compute `slow[rank]` times as long, and the delay of each computation.

    `delay` is one distribution for every rank, or one for each delayed rank.
    """

    slow: Mapping[int, float] = field(default_factory=dict)
    delay: Times | Mapping[int, Times] | None = None

    def __post_init__(self) -> None:
        _check_slow(self.slow)
        _check_delay(self.delay)
        object.__setattr__(self, "slow", dict(self.slow))  # a copy: the caller may change its own
        if isinstance(self.delay, Mapping):
            object.__setattr__(self, "delay", dict(self.delay))

    def check(self, ranks: int) -> None:
        """Raise an error for ranks that a run of `ranks` ranks does not have."""
        named = {"slow": self.slow, "delay": self.delay if isinstance(self.delay, Mapping) else {}}
        for argument, mapping in named.items():
            strangers = sorted(rank for rank in mapping if rank >= ranks)
            if strangers:
                remedy = f"this run has {ranks} rank{'s' if ranks > 1 else ''}"
                raise ConfigurationError(argument, f"must name ranks 0 to {ranks - 1}", strangers[0], remedy)

    def factor(self, rank: int) -> float:
        """Return the factor on this rank's compute time; below 1 it is faster than the others."""
        return self.slow.get(rank, 1.0)

    def delay_of(self, rank: int) -> Times | None:
        """Return the delay before each computation of this rank; None if it has none."""
        return self.delay.get(rank) if isinstance(self.delay, Mapping) else self.delay

    def words(self) -> list[str]:
        """Return a description of each slow rank and of each delay."""
        delays = self.delay if isinstance(self.delay, Mapping) else {}
        words = [f"rank {rank} {factor:g}x as slow" for rank, factor in sorted(self.slow.items())]
        words += [f"rank {rank} delayed by {delay}" for rank, delay in sorted(delays.items())]
        return words if self.delay is None or delays else [*words, f"delay {self.delay}"]


def _check_slow(slow: object) -> None:
    if not isinstance(slow, Mapping):
        raise ConfigurationError("slow", "must be a mapping of rank to factor", slow, "write {3: 4.0}")
    for rank, factor in slow.items():
        _check_rank("slow", rank)
        check_positive(factor, f"slow[{rank}]", "4.0 makes the rank four times as slow")


def _check_delay(delay: object) -> None:
    each = delay if isinstance(delay, Mapping) else {} if delay is None else {0: delay}
    for rank, distribution in each.items():
        _check_rank("delay", rank)
        if not isinstance(distribution, Times):
            argument = f"delay[{rank}]" if isinstance(delay, Mapping) else "delay"
            remedy = (
                "write pl.times.Exponential(mean=0.05), or {2: pl.times.Exponential(mean=0.05)} for rank 2"
            )
            raise ConfigurationError(argument, "must be a distribution of pl.times", distribution, remedy)


def _check_rank(argument: str, rank: object) -> None:
    if isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 0:
        raise ConfigurationError(argument, "must name ranks as whole numbers from 0", rank, "write {3: …}")


def parse_slow(text: str) -> dict[int, float]:
    """Parse `{rank: factor}` from text such as "3:4x,1:2x"."""
    slow: dict[int, float] = {}
    for word in text.split(","):
        match = _SLOW.fullmatch(word)
        if match is None:
            raise ConfigurationError("slow", "must be a list of rank:factor", text, SLOW_FORMS)
        if int(match[1]) in slow:
            raise ConfigurationError("slow", f"must name rank {int(match[1])} once", text, SLOW_FORMS)
        slow[int(match[1])] = float(match[2])
    _check_slow(slow)
    return slow


def parse_delay(text: str) -> Times | dict[int, Times]:
    """Parse one delay for every rank ("exp:mean=50ms"), or for one rank ("2=exp:mean=50ms")."""
    match = _DELAY_OF_RANK.fullmatch(text)
    if match is None:
        return times.parse(text, "delay")
    return {int(match[1]): times.parse(match[2], f"delay of rank {int(match[1])}")}


def parse_delays(texts: Iterable[str]) -> Times | dict[int, Times] | None:
    """Parse the values of a repeatable option: None, one delay for every rank, or one for each named rank."""
    given = list(texts)
    parsed = [parse_delay(text) for text in given]
    merged: dict[int, Times] = {}
    for delay in parsed:
        if not isinstance(delay, dict):
            if len(parsed) == 1:
                return delay
            raise ConfigurationError(
                "delay", "must be one delay for every rank, or delays for single ranks", given, DELAY_FORMS
            )
        if merged.keys() & delay.keys():
            raise ConfigurationError("delay", f"must name rank {next(iter(delay))} once", given, DELAY_FORMS)
        merged |= delay
    return merged or None
