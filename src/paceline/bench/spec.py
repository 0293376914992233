"""What a bench is asked for. Everything that can be refused is refused here, before a worker starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from paceline.bench.patterns import PATTERNS, Pattern
from paceline.errors import ConfigurationError, UnknownNameError

__all__ = ["BASELINES", "DTYPES", "Spec", "warm_up"]

DTYPES: Final = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8}
"""Bytes of an element, by name: known without torch."""

BASELINES: Final = ("gloo",)
_NOT_SIMULATED: Final = {
    "shared": "memory that ranks share moves no messages",
    "native": "torch.distributed keeps no virtual time",
}
_REPEATS: Final = {0: 100, 64 * 2**10: 40, 2**20: 20, 16 * 2**20: 10, math.inf: 5}
"""Timed calls up to a size in bytes: each size takes about as long."""

_MOST_SIZES = 200
_MOST_MESSAGES = 2_000_000
"""Of one simulated collective whose messages are planned one by one: half a minute, a gigabyte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """One bench: a pattern, algorithms for it, and sizes, from `begin_bytes` on by `factor` up to `end_bytes`."""

    pattern: str
    workers: int = 4
    algorithms: tuple[str, ...] = ()
    """None given: all that there are, `auto` apart, which is one of the others."""
    begin_bytes: int = 4 * 2**10
    end_bytes: int = 64 * 2**20
    factor: float = 4.0
    dtype: str = "float32"
    repeat: int | None = None
    """Timed calls of each algorithm at each size. None: more for small sizes, fewer for large ones."""
    against: str | None = None
    simulated: bool = False

    def __post_init__(self) -> None:
        _check_names(self)
        _check_numbers(self)
        names = tuple(dict.fromkeys(self.algorithms)) or self._all_algorithms()
        object.__setattr__(self, "algorithms", names)
        if self.simulated:
            _check_simulated(self)

    @property
    def kind(self) -> Pattern:
        return PATTERNS[self.pattern]

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def baseline(self) -> str | None:
        """The row that the others are compared with. `native` is Gloo already: it is not run twice."""
        return "native" if self.against == "gloo" and "native" in self.algorithms else self.against

    @property
    def cases(self) -> tuple[str, ...]:
        """What is timed at each size, in the order of the calls."""
        if self.baseline is None or self.baseline in self.algorithms:
            return self.algorithms
        return (*self.algorithms, self.baseline)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of each size, which is rounded down to whole elements (of equal chunks, where it is cut)."""
        if not self.kind.sized:
            return (0,)
        unit = self.workers if self.kind.divided else 1
        whole = (size // self.itemsize // unit * unit for size in _sizes(self))
        return tuple(dict.fromkeys(max(length, unit) for length in whole))

    def repeats(self, length: int) -> int:
        """Timed calls at a length."""
        if self.repeat is not None:
            return self.repeat
        nbytes = length * self.itemsize
        return next(count for limit, count in _REPEATS.items() if nbytes <= limit)

    @property
    def left_out(self) -> dict[str, str]:
        """Algorithms that a simulation does not have, and why."""
        known = {name: why for name, why in _NOT_SIMULATED.items() if name in self.kind.algorithms}
        if self._is_too_wide("all-to-all"):
            known["all-to-all"] = f"{self.workers * (self.workers - 1):,} messages; name it to have it timed"
        return {name: why for name, why in known.items() if name not in self.algorithms}

    def _all_algorithms(self) -> tuple[str, ...]:
        names = (name for name in self.kind.algorithms if name != "auto")
        if not self.simulated:
            return tuple(names)
        return tuple(n for n in names if n not in _NOT_SIMULATED and not self._is_too_wide(n))

    def _is_too_wide(self, algorithm: str) -> bool:
        """Whether timing it would take many seconds, which a user should ask for."""
        return self.pattern == "all-reduce" and algorithm == "all-to-all" and self.workers > 256


def warm_up(length: int, itemsize: int) -> int:
    """Calls before the timed ones: they open windows and connections, and fill caches."""
    return 2 if length * itemsize <= 2**20 else 1


def _sizes(spec: Spec) -> list[int]:
    sizes, size = [], float(spec.begin_bytes)
    while size <= spec.end_bytes:
        sizes.append(round(size))
        size *= spec.factor
    return sizes


def _check_names(spec: Spec) -> None:
    if spec.pattern not in PATTERNS:
        raise UnknownNameError("pattern", spec.pattern, PATTERNS)
    for name in spec.algorithms:
        if name not in spec.kind.algorithms:
            raise UnknownNameError(f"--algorithms of {spec.pattern}", name, spec.kind.algorithms)
    if spec.dtype not in DTYPES:
        raise UnknownNameError("--dtype", spec.dtype, DTYPES)
    if spec.against is not None and spec.against not in BASELINES:
        raise UnknownNameError("--against", spec.against, BASELINES)


def _check_numbers(spec: Spec) -> None:
    if spec.workers < 1:
        raise ConfigurationError("--workers", "must be at least 1", spec.workers, "4 is the default")
    if spec.repeat is not None and spec.repeat < 1:
        raise ConfigurationError("--repeat", "must be at least 1", spec.repeat, "leave it out for the usual")
    if spec.begin_bytes < 1:
        raise ConfigurationError("-b", "must be at least 1 byte", spec.begin_bytes, "write -b 4K, say")
    if spec.begin_bytes > spec.end_bytes:
        bound = f"must be at most -e, which is {spec.end_bytes} bytes"
        raise ConfigurationError("-b", bound, spec.begin_bytes, "raise -e or lower -b")
    if not 1 < spec.factor < math.inf:
        remedy = "each size is so many times the one before: write -f 4, say"
        raise ConfigurationError("-f", "must be above 1", spec.factor, remedy)
    count = 1 + math.log(spec.end_bytes / spec.begin_bytes) / math.log(spec.factor)
    if count > _MOST_SIZES:
        bound = f"must give at most {_MOST_SIZES} sizes from -b to -e"
        raise ConfigurationError("-f", bound, spec.factor, f"it gives {int(count):,}: raise it")


def _check_simulated(spec: Spec) -> None:
    if spec.against is not None:
        remedy = "leave out --against or --simulate"
        raise ConfigurationError("--against", "needs real workers", spec.against, remedy)
    for name in spec.algorithms:
        if name in _NOT_SIMULATED:
            bound = f"must not name {name} with --simulate"
            raise ConfigurationError("--algorithms", bound, name, f"{_NOT_SIMULATED[name]}: leave it out")
    messages = spec.workers * (spec.workers - 1)
    if spec.pattern == "all-reduce" and "all-to-all" in spec.algorithms and messages > _MOST_MESSAGES:
        bound = f"must be so few that all-to-all moves at most {_MOST_MESSAGES:,} messages"
        raise ConfigurationError("--workers", bound, spec.workers, "lower it or leave out all-to-all")
