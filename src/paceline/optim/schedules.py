"""Learning-rate schedules for `Task(schedule=…)`, built from torch's schedulers.

A length is given in steps or in epochs. A run knows how many updates an epoch has. Without a run, an epoch is one step.
Source of the linear rule and of the warm-up: Goyal et al., "Accurate, Large Minibatch SGD", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler, PolynomialLR, SequentialLR

from paceline.errors import ConfigurationError, UnknownNameError

Maker = Callable[[Optimizer], LRScheduler]

_RULES = ("linear", "sqrt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule of a known length. Call it with an optimizer to make torch's scheduler."""

    kind: Literal["warmup", "cosine", "polynomial"]
    length: float
    in_epochs: bool = False
    start: float = 0.0
    """Fraction of the rate before a warm-up."""
    power: float = 1.0
    end: float = 0.0
    """Fraction of the rate at the end of a cosine."""
    then: Maker | None = None
    """Schedule after a warm-up."""

    def with_epochs_of(self, steps: float) -> Schedule:
        """Return the same schedule in steps, if an epoch has this number of steps."""
        then = self.then.with_epochs_of(steps) if isinstance(self.then, Schedule) else self.then
        length = self.length * steps if self.in_epochs else self.length
        return replace(self, length=length, in_epochs=False, then=then)

    @property
    def counts_epochs(self) -> bool:
        return self.in_epochs or (isinstance(self.then, Schedule) and self.then.counts_epochs)

    @property
    def steps(self) -> int:
        return max(1, round(self.length))

    def __call__(self, optimizer: Optimizer) -> LRScheduler:
        if self.kind == "cosine":
            return LambdaLR(optimizer, self._cosine_at)
        if self.kind == "polynomial":
            return PolynomialLR(optimizer, self.steps, self.power)
        first = self.start + (1 - self.start) / self.steps  # the rate is reached in the last step
        rising = LinearLR(optimizer, first or 1e-12, 1.0, self.steps - 1)
        if self.then is None:
            return rising
        return SequentialLR(optimizer, [rising, self.then(optimizer)], [self.steps])

    def _cosine_at(self, step: int) -> float:
        done = min(step, self.steps) / self.steps
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2


def warmup(
    steps: int | None = None,
    *,
    epochs: float | None = None,
    start: float = 0.0,
    then: Maker | None = None,
) -> Schedule:
    """Return a schedule in which the rate rises linearly to the optimizer's rate, and then follows `then`.

    It rises from the fraction `start`, and reaches the rate in the last step of the warm-up. `then` is a schedule of
    this module, or any function of an optimizer that returns a scheduler. None for a constant rate.
    """
    if not 0 <= start <= 1:
        raise ConfigurationError("start", "must be from 0 to 1", start, "it is a fraction of the rate")
    if then is not None and not callable(then):
        raise ConfigurationError("then", "must be a schedule", then, "write pl.optim.cosine(steps=1000)")
    return Schedule(kind="warmup", start=start, then=then, **_length(steps, epochs))


def cosine(steps: int | None = None, *, epochs: float | None = None, end: float = 0.0) -> Schedule:
    """Return a schedule in which the rate falls to the fraction `end`, along half a cosine, and then stays."""
    if not 0 <= end <= 1:
        raise ConfigurationError("end", "must be from 0 to 1", end, "it is a fraction of the rate")
    return Schedule(kind="cosine", end=end, **_length(steps, epochs))


def polynomial(steps: int | None = None, *, epochs: float | None = None, power: float = 2.0) -> Schedule:
    """Return a schedule in which the rate falls to zero, as (1 - progress) to a power, and then stays."""
    if not 0 < power < math.inf:
        raise ConfigurationError("power", "must be above 0", power, "2 is usual with LARS")
    return Schedule(kind="polynomial", power=power, **_length(steps, epochs))


def _length(steps: object, epochs: object) -> dict[str, Any]:
    if (steps is None) == (epochs is None):
        bound = "or epochs must be given, and not both"
        raise ConfigurationError("steps", bound, (steps, epochs), "write epochs=5, for instance")
    name, value = ("epochs", epochs) if steps is None else ("steps", steps)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf or (name == "steps" and value != int(value)):  # type: ignore[operator,call-overload]
        bound = "must be a whole number of at least 1" if name == "steps" else "must be above 0"
        raise ConfigurationError(name, bound, value, "it is the length of the schedule")
    return {"length": value, "in_epochs": steps is None}


def scaled(lr: float, batch_size: int, base: int = 256, rule: str = "linear") -> float:
    """Return the rate for a batch size, given the rate for batches of `base` samples.

    The "linear" rule is for SGD. The "sqrt" rule is for Adam, LAMB, and SGD with very large batches.
    """
    if rule not in _RULES:
        raise UnknownNameError("rule", rule, _RULES)
    for name, value in (("lr", lr), ("batch_size", batch_size), ("base", base)):
        if not 0 < value < math.inf:
            raise ConfigurationError(name, "must be above 0", value)
    factor = batch_size / base
    return lr * (factor if rule == "linear" else math.sqrt(factor))


def in_steps(schedule: Any, steps: Callable[[], float]) -> Any:
    """Return a task's schedule with lengths in steps. `steps` returns the number in an epoch, if that is needed."""
    counts = isinstance(schedule, Schedule) and schedule.counts_epochs
    return schedule.with_epochs_of(steps()) if counts else schedule
