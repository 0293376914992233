"""A user-defined training step: its loss, the parameters that it trains, and the values that it logs.

A step that yields is run again for each of its turns, up to the yield of that turn. So the loss of a turn uses the
parameters after the updates of the previous turns. All runs use the same random numbers. Buffers (BatchNorm
statistics, for example) change as if the step had run once. A step may yield a function that returns the loss. The
function is called only in its own turn, which saves time in the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from paceline.context import Batch
from paceline.errors import ConfigurationError
from paceline.task.task import Task

_TAKEN = ("step", "seconds", "metric", "samples", "bytes", "epoch", "extra")
"""Names of a record's own fields."""


class StepLoss(NamedTuple):
    """Result of a step for one batch."""

    value: Tensor
    trained: Sequence[Tensor] | None
    """Parameters to update. None for all."""
    logged: dict[str, float]


class UserStep:
    """A task's step on one module."""

    def __init__(self, task: Task, module: nn.Module, buffers: Callable[[], Sequence[Tensor]]) -> None:
        assert task.step is not None
        self._step = task.step
        self._turns = task.turns
        self._buffers = buffers
        self._at_first: list[Tensor] = []  # buffers before the first turn
        self._trained = {name: _trainable(getattr(module, name)) for name in set(task.turns)}

    def loss(self, model: Any, batch: Batch, content: Any) -> StepLoss:
        """Return the loss of a batch in its turn. `model` is the module, or its compiled version."""
        if not self._turns:
            value, logged = _read("return", self._step(model, content))
            return StepLoss(value, None, logged)
        turn = batch.number % len(self._turns)
        name = self._turns[turn]
        value, logged = _read("yield", self._run(model, content, turn))
        logged[f"{name}_loss"] = value.item()
        return StepLoss(value, self._trained[name], logged)

    def _run(self, model: Any, content: Any, turn: int) -> Any:
        """Return the value that the step yields in a turn."""
        buffers = self._buffers()
        now = [buffer.clone() for buffer in buffers]
        if turn == 0:
            self._at_first = now
        _restore(buffers, self._at_first or now)
        made: Generator[Any, None, None] = self._step(model, content)
        try:
            for number in range(turn):
                self._next(made, number)
            _restore(self._buffers(), now)
            given = self._next(made, turn)
            found = given() if callable(given) and not isinstance(given, Tensor) else given
            if turn == len(self._turns) - 1:
                self._check_end(made)
        finally:
            made.close()
        return found

    def _next(self, made: Generator[Any, None, None], number: int) -> Any:
        expected = self._turns[number]
        order = ", ".join(self._turns)
        try:
            given = next(made)
        except StopIteration:
            bound = f"must yield {len(self._turns)} times ({order})"
            raise ConfigurationError("step", bound, number, "give Task(turns=…) as many names") from None
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str):
            remedy = f'write yield "{expected}", loss'
            raise ConfigurationError("step", "must yield a name and a loss", _kind(given), remedy)
        name, loss = given
        if name != expected:
            bound = f"must yield in the order of its turns ({order}): {expected} as number {number + 1}"
            remedy = "give Task(turns=…): the names in the order of the yields"
            raise ConfigurationError("step", bound, name, remedy)
        return loss

    def _check_end(self, made: Generator[Any, None, None]) -> None:
        for another in made:
            bound = f"must yield {len(self._turns)} times ({', '.join(self._turns)})"
            remedy = "give Task(turns=…): a name for each yield"
            raise ConfigurationError("step", bound, f"one more: {_kind(another)}", remedy)


def micro_batches(batch: Batch, parts: int) -> list[Batch]:
    """Return a worker's slice in nearly equal parts of at least one sample."""
    parts = min(parts, batch.count)
    if parts <= 1:
        return [batch]
    bounds = [batch.count * number // parts for number in range(parts + 1)]
    return [
        Batch(batch.step, batch.start + a, b - a, batch.total, batch.whole, batch.update, part)
        for part, (a, b) in enumerate(itertools.pairwise(bounds))
    ]


def _read(how: str, given: Any) -> tuple[Tensor, dict[str, float]]:
    """Return the loss, and the other values to log."""
    remedy = f"{how} a tensor with one element, or a dictionary with it as loss"
    bound = f"must {how} a loss"
    if isinstance(given, Mapping):
        if "loss" not in given:
            raise ConfigurationError("step", bound, f"a dictionary of {', '.join(map(str, given))}", remedy)
        loss, others = given["loss"], {name: value for name, value in given.items() if name != "loss"}
    else:
        loss, others = given, {}
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ConfigurationError("step", bound, _kind(loss), remedy)
    if not loss.requires_grad:
        why = "compute it from the model's outputs, without detach, item or no_grad"
        bound = f"must {how} a loss that depends on the model"
        raise ConfigurationError("step", bound, "one that does not", why)
    return loss, {name: _number(name, value) for name, value in others.items()}


def _number(name: object, value: Any) -> float:
    if not isinstance(name, str) or name in _TAKEN:
        remedy = f"choose another name: {', '.join(_TAKEN)} are fields of a record"
        raise ConfigurationError("step", "must have a text as the name of each logged value", name, remedy)
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigurationError(f"step's {name!r}", "must be a number", _kind(value), "log a mean") from None


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _trainable(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _restore(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        # Autograd does not count a write to `data` as a change. BatchNorm's backward does not use its statistics.
        buffer.data.copy_(value)
