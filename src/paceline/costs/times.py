"""Distributions of compute times, in seconds.

Each accepts seconds as numbers or as text ("50ms"), and raises an error for negative values or NaN. It draws from the
caller's random generator: equal seeds give equal sequences. `sample(rng, n)` equals n draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.costs.units import check_positive, format_seconds, parse_seconds
from paceline.errors import ConfigurationError, UnknownNameError


@runtime_checkable
class Times(Protocol):
    """A distribution of seconds."""

    @property
    def mean_s(self) -> float:
        """Expected value in seconds. May be infinite."""
        ...

    def draw(self, rng: np.random.Generator) -> float:
        """Draw one time, in seconds."""
        ...

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw the next `n` times."""
        ...


def _keep_seconds(times: Times, given: str, kept: str) -> None:
    """Parse the field `given` and store its seconds in the field `kept`."""
    seconds = parse_seconds(getattr(times, given), f"{type(times).__name__}.{given}")
    object.__setattr__(times, kept, seconds)


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant time."""

    seconds: str | float = field(compare=False)
    mean_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _keep_seconds(self, "seconds", "mean_s")

    def __str__(self) -> str:
        return format_seconds(self.mean_s)

    def draw(self, rng: np.random.Generator) -> float:
        return self.mean_s

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return np.full(n, self.mean_s)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Memoryless: the remaining time does not depend on the elapsed time."""

    mean: str | float = field(compare=False)
    mean_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _keep_seconds(self, "mean", "mean_s")

    def __str__(self) -> str:
        return f"exponential with mean {format_seconds(self.mean_s)}"

    def draw(self, rng: np.random.Generator) -> float:
        return rng.exponential(self.mean_s)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return rng.exponential(self.mean_s, n)


@dataclass(frozen=True, slots=True)
class ShiftedExponential:
    """`shift`, plus an exponential time with the given mean."""

    shift: str | float = field(compare=False)
    mean: str | float = field(compare=False)
    shift_s: float = field(init=False, repr=False)
    excess_s: float = field(init=False, repr=False)
    """Mean of the exponential part alone."""

    def __post_init__(self) -> None:
        _keep_seconds(self, "shift", "shift_s")
        _keep_seconds(self, "mean", "excess_s")

    @property
    def mean_s(self) -> float:
        return self.shift_s + self.excess_s

    def __str__(self) -> str:
        return f"{format_seconds(self.shift_s)} plus exponential with mean {format_seconds(self.excess_s)}"

    def draw(self, rng: np.random.Generator) -> float:
        return self.shift_s + rng.exponential(self.excess_s)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.shift_s + rng.exponential(self.excess_s, n)


@dataclass(frozen=True, slots=True)
class Pareto:
    """Heavy-tailed: P(X > x) = (minimum / x) ** shape. The mean is infinite if shape is at most 1."""

    minimum: str | float = field(compare=False)
    shape: float
    minimum_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _keep_seconds(self, "minimum", "minimum_s")
        if self.minimum_s == 0:
            remedy = 'write "10ms", say, or Constant(0) for no time at all'
            raise ConfigurationError("Pareto.minimum", "must be more than 0 seconds", self.minimum, remedy)
        check_positive(self.shape, "Pareto.shape", "shapes from 1.5 (wild) to 5 (tame) are common")

    @property
    def mean_s(self) -> float:
        return self.minimum_s * self.shape / (self.shape - 1) if self.shape > 1 else math.inf

    def __str__(self) -> str:
        return f"Pareto of shape {self.shape:g} from {format_seconds(self.minimum_s)}"

    def draw(self, rng: np.random.Generator) -> float:
        return self.minimum_s * (1 + rng.pareto(self.shape))

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.minimum_s * (1 + rng.pareto(self.shape, n))


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """Measured times: each draw is one of them, all equally likely."""

    values: Iterable[str | float] = field(compare=False)
    values_s: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        given = tuple(self.values) if isinstance(self.values, Iterable) else ()
        if not given or isinstance(self.values, str):
            remedy = "write Trace([0.1, 0.2]), or read it: parse('trace:0.1,0.2')"
            raise ConfigurationError(
                "Trace.values", "must be a list of at least one time", self.values, remedy
            )
        seconds = tuple(parse_seconds(value, f"Trace.values[{i}]") for i, value in enumerate(given))
        object.__setattr__(self, "values", given)  # an iterator can be read only once
        object.__setattr__(self, "values_s", seconds)

    def __repr__(self) -> str:
        # The list of measurements may be very long.
        count = len(self.values_s)
        text = repr(self.values) if count <= 8 else f"<{count} times, mean {format_seconds(self.mean_s)}>"
        return f"Trace({text})"

    @property
    def mean_s(self) -> float:
        return math.fsum(self.values_s) / len(self.values_s)

    def __str__(self) -> str:
        return f"a trace of {len(self.values_s):,} times with mean {format_seconds(self.mean_s)}"

    # A uniform float selects the value: rng.integers uses different streams for one and for many.
    def draw(self, rng: np.random.Generator) -> float:
        return self.values_s[int(rng.random() * len(self.values_s))]

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return np.array(self.values_s)[(rng.random(n) * len(self.values_s)).astype(np.int64)]


@dataclass(frozen=True, slots=True)
class Phases:
    """Times of one micro-batch in one stage of a pipeline: its forward pass, and the two parts of its backward pass.

    With `order=interleaved` the times are those of one chunk: a worker with two chunks takes twice as long for a
    micro-batch. `backward` is for the gradients of the inputs, `weights` for the gradients of the weights. A strategy
    that does not cut the model takes the sum of all three for a gradient.
    """

    forward: str | float = field(compare=False)
    backward: str | float = field(compare=False)
    weights: str | float = field(compare=False)
    forward_s: float = field(init=False, repr=False)
    backward_s: float = field(init=False, repr=False)
    weights_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for phase in ("forward", "backward", "weights"):
            _keep_seconds(self, phase, f"{phase}_s")

    @property
    def mean_s(self) -> float:
        return self.forward_s + self.backward_s + self.weights_s

    def __str__(self) -> str:
        parts = {"forward": self.forward_s, "backward": self.backward_s, "weights": self.weights_s}
        return " + ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items())

    def draw(self, rng: np.random.Generator) -> float:
        return self.mean_s

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return np.full(n, self.mean_s)


_Class = (
    type[Constant] | type[Exponential] | type[ShiftedExponential] | type[Pareto] | type[Trace] | type[Phases]
)

_CLASSES: dict[str, _Class] = {
    "const": Constant,
    "constant": Constant,
    "exp": Exponential,
    "exponential": Exponential,
    "shifted-exp": ShiftedExponential,
    "shifted-exponential": ShiftedExponential,
    "pareto": Pareto,
    "trace": Trace,
    "phases": Phases,
}
_SHORT_KEYS = {"min": "minimum"}
_FORMS = (
    'write "const:50ms", "exp:mean=50ms", "shifted-exp:shift=10ms,mean=5ms", '
    '"pareto:min=10ms,shape=2", "trace:0.1,0.2" or "phases:forward=2ms,backward=2ms,weights=2ms"'
)


def parse(spec: str, argument: str = "times") -> Times:
    """Parse a distribution from text such as "exp:mean=50ms". Values without a key fill the keys in order."""
    name, _, rest = spec.partition(":")
    name = name.strip().lower()
    if name not in _CLASSES:
        raise UnknownNameError(argument, name, _CLASSES)
    words = [word.strip() for word in rest.split(",") if word.strip()]
    if _CLASSES[name] is Trace:
        return Trace(words)
    return _build(_CLASSES[name], _by_key(_CLASSES[name], words, spec, argument), spec, argument)


def _keys(kind: _Class) -> list[str]:
    return [f.name for f in fields(kind) if f.init]


def _by_key(kind: _Class, words: list[str], spec: str, argument: str) -> dict[str, str]:
    keys = _keys(kind)
    if len(words) > len(keys):
        bound = f"takes at most {len(keys)} values ({', '.join(keys)})"
        raise ConfigurationError(f"{argument} {kind.__name__}", bound, spec, _FORMS)
    values: dict[str, str] = {}
    for position, word in enumerate(words):
        given, equals, value = (part.strip() for part in word.rpartition("="))
        key = _SHORT_KEYS.get(given, given) if equals else keys[position]
        if key not in keys:
            raise UnknownNameError(f"a key of {kind.__name__}", given, keys)
        if key in values:
            raise ConfigurationError(f"{argument} {kind.__name__}.{key}", "must be given once", spec, _FORMS)
        values[key] = value
    return values


def _build(kind: _Class, values: Mapping[str, str], spec: str, argument: str) -> Times:
    missing = [key for key in _keys(kind) if key not in values]
    if missing:
        raise ConfigurationError(
            f"{argument} {kind.__name__}", f"needs {' and '.join(missing)}", spec, _FORMS
        )
    if kind is Pareto:
        return Pareto(values["minimum"], _number(values["shape"]))
    return kind(**values)  # type: ignore[arg-type]  # the keys are this class's own


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError("Pareto.shape", "must be a finite number above 0", text, _FORMS) from None
