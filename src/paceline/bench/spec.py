"""The specification of a bench, validated before any worker starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from paceline.bench.patterns import PATTERNS, Pattern
from paceline.errors import ConfigurationError, UnknownNameError

DTYPES: Final = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8}
"""Bytes of an element by dtype name, available without torch."""

BASELINES: Final = ("gloo",)
_NOT_SIMULATED: Final = {
    "shared": "shared memory sends no messages",
    "native": "torch.distributed has no virtual time",
}
_NEEDS_SHARED_MEMORY: Final = {"shared": "ranks connected by TCP share no memory"}
_REPEATS: Final = {0: 100, 64 * 2**10: 40, 2**20: 20, 16 * 2**20: 10, math.inf: 5}
"""Number of timed calls by maximum size in bytes, so that each size takes about the same time."""

_MOST_SIZES = 200
_MOST_MESSAGES = 2_000_000
"""Limit for a simulated collective with individually planned messages: half a minute, a gigabyte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """One bench: a pattern, its algorithms, and sizes from `begin_bytes` to `end_bytes` in steps of `factor`."""

    pattern: str
    workers: int = 4
    algorithms: tuple[str, ...] = ()
    """If empty, all except `auto`, which selects one of the others."""
    begin_bytes: int = 4 * 2**10
    end_bytes: int = 64 * 2**20
    factor: float = 4.0
    dtype: str = "float32"
    repeat: int | None = None
    """Timed calls of each algorithm at each size. If None, more for small sizes and fewer for large ones."""
    against: str | None = None
    simulated: bool = False
    shares_memory: bool = True
    """Whether real ranks share memory. If false, algorithms that need it are left out."""

    def __post_init__(self) -> None:
        _check_names(self)
        _check_numbers(self)
        names = tuple(dict.fromkeys(self.algorithms)) or self._all_algorithms()
        object.__setattr__(self, "algorithms", names)
        _check_possible(self)
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
        """Name of the row for comparison; None if there is none.

        The algorithm `native` is Gloo too, so it is run only once.
        """
        return "native" if self.against == "gloo" and "native" in self.algorithms else self.against

    @property
    def cases(self) -> tuple[str, ...]:
        """The cases to time at each size, in the order of the calls."""
        if self.baseline is None or self.baseline in self.algorithms:
            return self.algorithms
        return (*self.algorithms, self.baseline)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of elements of each size, rounded down to whole elements, or to equal chunks if the tensor is cut."""
        if not self.kind.sized:
            return (0,)
        unit = self.workers if self.kind.divided else 1
        whole = (size // self.itemsize // unit * unit for size in _sizes(self))
        return tuple(dict.fromkeys(max(length, unit) for length in whole))

    def repeats(self, length: int) -> int:
        """Return the number of timed calls at a length."""
        if self.repeat is not None:
            return self.repeat
        nbytes = length * self.itemsize
        return next(count for limit, count in _REPEATS.items() if nbytes <= limit)

    @property
    def left_out(self) -> dict[str, str]:
        """Algorithms that are not timed, with the reason."""
        known = {name: why for name, why in self._impossible.items() if name in self.kind.algorithms}
        if self.simulated and self._is_too_wide("all-to-all"):
            known["all-to-all"] = f"{self.workers * (self.workers - 1):,} messages; name it to time it"
        return {name: why for name, why in known.items() if name not in self.algorithms}

    def _all_algorithms(self) -> tuple[str, ...]:
        names = (n for n in self.kind.algorithms if n != "auto" and n not in self._impossible)
        return tuple(n for n in names if not (self.simulated and self._is_too_wide(n)))

    @property
    def _impossible(self) -> dict[str, str]:
        """Algorithms that these ranks cannot execute, with the reason."""
        if self.simulated:
            return _NOT_SIMULATED
        return {} if self.shares_memory else _NEEDS_SHARED_MEMORY

    def _is_too_wide(self, algorithm: str) -> bool:
        """Return whether timing an algorithm would take many seconds. Then it runs only if the user names it."""
        return self.pattern == "all-reduce" and algorithm == "all-to-all" and self.workers > 256


def warm_up(length: int, itemsize: int) -> int:
    """Return the number of calls before the timed ones. They open windows and connections, and fill caches."""
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
        raise ConfigurationError("--repeat", "must be at least 1", spec.repeat, "omit it for the default")
    if spec.begin_bytes < 1:
        raise ConfigurationError("-b", "must be at least 1 byte", spec.begin_bytes, "for example -b 4K")
    if spec.begin_bytes > spec.end_bytes:
        bound = f"must be at most -e, which is {spec.end_bytes} bytes"
        raise ConfigurationError("-b", bound, spec.begin_bytes, "raise -e or lower -b")
    if not 1 < spec.factor < math.inf:
        remedy = "each size is the previous one times -f: for example -f 4"
        raise ConfigurationError("-f", "must be above 1", spec.factor, remedy)
    count = 1 + math.log(spec.end_bytes / spec.begin_bytes) / math.log(spec.factor)
    if count > _MOST_SIZES:
        bound = f"must give at most {_MOST_SIZES} sizes from -b to -e"
        raise ConfigurationError("-f", bound, spec.factor, f"it gives {int(count):,}: raise it")


def _check_possible(spec: Spec) -> None:
    option = "--simulate" if spec.simulated else "--link tcp"
    for name in spec.algorithms:
        if name in spec._impossible:
            bound = f"must not name {name} with {option}"
            raise ConfigurationError("--algorithms", bound, name, f"{spec._impossible[name]}: omit it")


def _check_simulated(spec: Spec) -> None:
    if spec.against is not None:
        remedy = "omit --against or --simulate"
        raise ConfigurationError("--against", "needs real workers", spec.against, remedy)
    messages = spec.workers * (spec.workers - 1)
    if spec.pattern == "all-reduce" and "all-to-all" in spec.algorithms and messages > _MOST_MESSAGES:
        bound = f"must be low enough that all-to-all sends at most {_MOST_MESSAGES:,} messages"
        raise ConfigurationError("--workers", bound, spec.workers, "lower it or omit all-to-all")
