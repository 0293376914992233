"""Facts that are sent with a gradient of a user's loop: its samples, and the settings of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_FIXED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Facts about one gradient of one worker. The ranks that apply the gradient need them."""

    step: int
    """Number of the worker's own step."""
    count: int
    """Samples of the worker. Negative if its loop has ended after `step` steps."""
    total: int
    """Samples of the global batch."""
    clip_norm: float = math.inf
    """Upper bound of the norm of the reduced gradient. Infinite for no clipping."""
    loss: float = math.nan
    """Mean loss, as given to `pl.log`. NaN if it was not given."""
    options: tuple[float, ...] = ()
    """Numbers in the optimizer's parameter groups, such as learning rates: see `OptionNames`."""

    @classmethod
    def of_end(cls, steps: int) -> StepFacts:
        """Return the last message of a worker: its loop has ended."""
        return cls(step=steps, count=-1, total=0)

    def pack(self) -> Tensor:
        numbers = (self.step, self.count, self.total, self.clip_norm, self.loss, *self.options)
        return torch.tensor(numbers, dtype=torch.float64)

    @classmethod
    def unpack(cls, tensor: Tensor) -> StepFacts:
        step, count, total, clip_norm, loss, *options = tensor.tolist()
        assert len(tensor) == _FIXED + len(options)
        return cls(
            step=int(step),
            count=int(count),
            total=int(total),
            clip_norm=clip_norm,
            loss=loss,
            options=tuple(options),
        )


class OptionNames:
    """The numbers in an optimizer's parameter groups, in an order that is the same on every rank."""

    def __init__(self, groups: Sequence[Mapping[str, Any]]) -> None:
        self._keys = [sorted(key for key in group if key != "params") for group in groups]

    @property
    def groups(self) -> int:
        return len(self._keys)

    def read(self, groups: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
        """Return the numbers of these groups."""
        found = (_numbers(group[key]) for group, keys in self._pairs(groups) for key in keys)
        return tuple(number for numbers in found for number in numbers)

    def write(self, groups: Sequence[dict[str, Any]], numbers: Sequence[float]) -> None:
        """Set the numbers of these groups. Other settings are unchanged."""
        rest = iter(numbers)
        for group, keys in self._pairs(groups):
            for key in keys:
                group[key] = _replaced(group[key], rest)

    def _pairs(self, groups: Sequence[Any]) -> Iterator[tuple[Any, list[str]]]:
        return zip(groups, self._keys, strict=True)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Tensor) and value.numel() == 1:
        return [value.item()]
    if isinstance(value, tuple | list):
        return [number for each in value for number in _numbers(each)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def _replaced(value: Any, rest: Iterator[float]) -> Any:
    """Return a value of the same type, filled with the next of the numbers."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.fill_(next(rest))
    if isinstance(value, tuple | list):
        return type(value)(_replaced(each, rest) for each in value)
    return type(value)(next(rest)) if _numbers(value) else value
