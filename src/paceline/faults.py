"""Faults to inject into a run: which rank fails, how, and when. Simulated and local runs accept the same list."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import numpy as np

from paceline.costs.units import check_positive, format_seconds, parse_seconds
from paceline.errors import ConfigurationError, UnknownNameError

FORMS = 'write pl.faults.Kill(1, at="5ms") or pl.faults.Kill(1, step=3)'
TEXT_FORMS = "write kill:rank=2,at=3s, or pause:rank=1,step=40,seconds=5"


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a rank `at` a time after the start of the run, or at the start of the rank's own step number `step`.

    `at` is text such as "5ms", or seconds. A rank that has already ended is not killed.
    """

    rank: int
    at: str | float | None = None
    step: int | None = None
    at_s: float | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_time(self)

    def __str__(self) -> str:
        return f"rank {self.rank} killed {_when(self)}"


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a rank for some seconds, as SIGSTOP and SIGCONT do. See `Kill` for `at` and `step`."""

    rank: int
    at: str | float | None = None
    step: int | None = None
    seconds: str | float = 1.0
    at_s: float | None = field(init=False, repr=False)
    seconds_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_time(self)
        _check_duration(self)

    def __str__(self) -> str:
        return f"rank {self.rank} paused {_when(self)} for {format_seconds(self.seconds_s)}"


@dataclass(frozen=True, slots=True)
class Slow:
    """Make the computations of a rank take `factor` times as long, for some seconds.

    See `Kill` for `at` and `step`. For a whole run use the cluster's `slow`.
    """

    rank: int
    factor: float
    at: str | float | None = None
    step: int | None = None
    seconds: str | float = 1.0
    at_s: float | None = field(init=False, repr=False)
    seconds_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_time(self)
        _check_duration(self)
        check_positive(self.factor, "Slow.factor", "4 makes the rank four times as slow")
        if self.factor < 1:
            remedy = "a real worker cannot be made faster"
            raise ConfigurationError("Slow.factor", "must be at least 1", self.factor, remedy)

    def __str__(self) -> str:
        return f"rank {self.rank} {self.factor:g}x as slow {_when(self)} for {format_seconds(self.seconds_s)}"


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut ranks off from the other ranks and from the driver, from a time on, for some seconds.

    Messages between the two sides are held back until the end of the cut. If it lasts too long (15 s, or half of
    `deadline_s` if that is less), the ranks stop, because they cannot reach the driver, and are lost to the others.
    """

    ranks: Sequence[int] | str
    """Ranks on the side without the driver. As text: "0+1"."""
    at: str | float
    seconds: str | float = 1.0
    at_s: float = field(init=False, repr=False)
    seconds_s: float = field(init=False, repr=False)
    side: tuple[int, ...] = field(init=False, repr=False)
    rank: ClassVar[int] = -1
    """No rank in particular."""
    step: ClassVar[None] = None

    def __post_init__(self) -> None:
        remedy = "write pl.faults.Cut([0, 1], at=6, seconds=3), or cut:ranks=0+1,at=6s,seconds=3"
        ranks = _ranks(self.ranks)
        if not ranks or len(set(ranks)) != len(ranks):
            raise ConfigurationError(
                "Cut.ranks", "must name at least one rank, each once", self.ranks, remedy
            )
        for rank in ranks:
            _check_count(rank, "Cut.ranks", remedy)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "side", ranks)
        object.__setattr__(self, "at_s", parse_seconds(self.at, "Cut.at"))
        _check_duration(self)

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.side))
        return f"rank {ranks} cut off at {format_seconds(self.at_s)} for {format_seconds(self.seconds_s)}"


@dataclass(frozen=True, slots=True)
class Join:
    """Start the lowest lost rank again, `at` a time, or when the run begins step number `step`. It joins the run.

    Only in runs with `min_workers` whose members regroup. Nothing happens if no rank is lost.
    """

    at: str | float | None = None
    step: int | None = None
    at_s: float | None = field(init=False, repr=False)
    rank: ClassVar[int] = -1
    """No rank in particular."""

    def __post_init__(self) -> None:
        _check_moment(self)

    def __str__(self) -> str:
        return f"a lost rank joins {_when(self)}"


@dataclass(frozen=True, slots=True)
class Random:
    """Kill ranks at random times, with a mean time of `mean` between two failures of the run.

    Each failure kills one of the ranks that are left. Equal seeds give equal faults.
    """

    mean: str | float
    seed: int = 0
    mean_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean_s", parse_seconds(self.mean, "Random.mean"))
        check_positive(self.mean_s, "Random.mean", 'write "10min"')
        _check_count(self.seed, "Random.seed", "write seed=0")

    def __str__(self) -> str:
        return f"a random rank killed every {format_seconds(self.mean_s)} (seed {self.seed})"

    def kills(self, ranks: int) -> list[Kill]:
        """Return the kills of a run of `ranks` ranks, in order of time."""
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(ranks).tolist()
        times_s = np.cumsum(rng.exponential(self.mean_s, ranks)).tolist()
        return [Kill(rank, at=at_s) for rank, at_s in zip(order, times_s, strict=True)]


Fault: TypeAlias = Kill | Pause | Slow | Cut | Join
"""A fault of one rank."""
KINDS: tuple[type[Any], ...] = (Kill, Pause, Slow, Cut, Join, Random)
_BY_NAME = {kind.__name__.lower(): kind for kind in KINDS}


def faults_of_ranks(faults: Sequence[Fault | Random], ranks: int) -> list[Fault]:
    """Return the faults of a run of `ranks` ranks. Random faults are drawn, and faults of other ranks left out."""
    found: list[Fault] = []
    for fault in faults:
        found += fault.kills(ranks) if isinstance(fault, Random) else [fault]
    return [fault for fault in found if fault.rank < ranks]


def trace(path: str | os.PathLike[str], scale: float = 1.0) -> list[Fault]:
    """Return the faults of a recorded trace, such as the removals and additions of machines on a spot market.

    Each line of the file is `seconds,remove,RANK` or `seconds,add`. Times are multiplied by `scale`.
    """
    check_positive(scale, "trace.scale", "0.01 makes an hour 36 seconds")
    found: list[Fault] = []
    with open(path, newline="", encoding="utf-8") as file:
        for number, line in enumerate(csv.reader(file), start=1):
            if line:
                found.append(_of_line([word.strip() for word in line], scale, number))
    return found


def _of_line(words: list[str], scale: float, number: int) -> Fault:
    try:
        at_s = float(words[0]) * scale
        if words[1] == "add" and len(words) == 2:
            return Join(at=at_s)
        if words[1] == "remove" and len(words) == 3:
            return Kill(int(words[2]), at=at_s)
    except (IndexError, ValueError):
        pass
    bound = f"must have lines of the form seconds,remove,RANK or seconds,add; line {number} has not"
    raise ConfigurationError("trace", bound, ",".join(words), "for example 3.5,remove,2")


def parse(text: str) -> Fault | Random:
    """Parse a fault from text such as "kill:rank=2,at=3s"."""
    name, _, rest = text.partition(":")
    kind = _BY_NAME.get(name.strip().lower())
    if kind is None:
        raise UnknownNameError("fault", name.strip(), _BY_NAME)
    known = {each.name for each in fields(kind) if each.init}
    values: dict[str, Any] = {}
    for word in filter(None, (word.strip() for word in rest.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or key in values:
            raise ConfigurationError("fault", "must have each key=value once", text, TEXT_FORMS)
        if key not in known:
            raise UnknownNameError(f"a key of {kind.__name__}", key, known)
        values[key] = _number(value) if key in _Keys.numbers else value
    try:
        fault: Fault | Random = kind(**values)
    except TypeError:
        needed = ", ".join(sorted(_Keys.needed[kind.__name__] - values.keys()))
        raise ConfigurationError("fault", f"must have {needed}", text, TEXT_FORMS) from None
    return fault


class _Keys:
    numbers: ClassVar = {"rank", "step", "factor", "seed"}
    needed: ClassVar = {
        "Kill": {"rank"},
        "Pause": {"rank"},
        "Slow": {"rank", "factor"},
        "Cut": {"ranks", "at"},
        "Join": set(),
        "Random": {"mean"},
    }


def _number(text: str) -> int | float | str:
    """Return a number if the text is one, else the text. The fault's own check then refuses it."""
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if math.isfinite(value) and value == int(value) else value


def _ranks(ranks: object) -> tuple[Any, ...]:
    if isinstance(ranks, str):
        return tuple(_number(word.strip()) for word in ranks.split("+"))
    return tuple(ranks) if isinstance(ranks, Sequence) else (ranks,)


def _when(fault: Kill | Pause | Slow | Join) -> str:
    return f"in step {fault.step}" if fault.at_s is None else f"at {format_seconds(fault.at_s)}"


def _check_time(fault: Kill | Pause | Slow) -> None:
    _check_count(fault.rank, f"{type(fault).__name__}.rank")
    _check_moment(fault)


def _check_moment(fault: Kill | Pause | Slow | Join) -> None:
    name = type(fault).__name__
    if (fault.at is None) == (fault.step is None):
        raise ConfigurationError(name, "must have either at or step", (fault.at, fault.step), FORMS)
    if fault.step is not None:
        _check_count(fault.step, f"{name}.step")
    at_s = None if fault.at is None else parse_seconds(fault.at, f"{name}.at")
    object.__setattr__(fault, "at_s", at_s)


def _check_duration(fault: Pause | Slow | Cut) -> None:
    object.__setattr__(fault, "seconds_s", parse_seconds(fault.seconds, f"{type(fault).__name__}.seconds"))


def _check_count(value: object, argument: str, remedy: str = FORMS) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ConfigurationError(argument, "must be a whole number from 0", value, remedy)
