"""The calls of callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigurationError
from paceline.runs.run import Record, Run

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.task.task import Task

_HOOKS = ("on_begin", "on_step", "on_evaluate", "on_end")


class Stop(Enum):
    """The value that a callback returns to end the run."""

    STOP = "stop"


STOP = Stop.STOP


class StopTraining(Exception):  # noqa: N818
    """Raised by a callback to end the run without an error."""


class Callbacks:
    """The callbacks of one run."""

    def __init__(self, given: Iterable[Any] | None) -> None:
        self._all: Sequence[Any] = _checked(given)

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def want_steps(self) -> bool:
        return any(hasattr(each, "on_step") for each in self._all)

    @property
    def want_evaluations(self) -> bool:
        return any(hasattr(each, "on_evaluate") for each in self._all)

    @property
    def want_state(self) -> bool:
        return any(getattr(each, "wants_state", False) for each in self._all)

    def begin(self, task: Task) -> None:
        for each in self._having("on_begin"):
            each.on_begin(task)

    def consult(self, record: Record, state: dict[str, Tensor] | None) -> bool:
        """Pass a record to all callbacks. Return whether one of them ends the run."""
        stops = False
        for each in self._having("on_step"):
            stops |= _stops(each.on_step, record)
        if record.metric is not None:
            for each in self._having("on_evaluate"):
                wants = getattr(each, "wants_state", False)
                stops |= _stops(each.on_evaluate, record, state if wants else None)
        return stops

    def end(self, run: Run | None) -> None:
        for each in self._having("on_end"):
            each.on_end(run)

    def _having(self, hook: str) -> Iterable[Any]:
        return (each for each in self._all if hasattr(each, hook))


def _stops(hook: Any, *args: Any) -> bool:
    try:
        return hook(*args) is STOP
    except StopTraining:
        return True


def _checked(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise ConfigurationError("callbacks", "must be a list", given, "write [callback]")
    for each in given:
        if isinstance(each, type):
            remedy = "add () after its name"
            raise ConfigurationError("callbacks", "must be objects, not classes", each, remedy)
        if not any(hasattr(each, hook) for hook in _HOOKS):
            remedy = f"add one of {', '.join(_HOOKS)}"
            raise ConfigurationError("callbacks", "must have methods to call", each, remedy)
        if getattr(each, "wants_state", False) and not hasattr(each, "on_evaluate"):
            remedy = "the state is passed at evaluations: add on_evaluate(record, state)"
            raise ConfigurationError("callbacks", "must have on_evaluate with wants_state", each, remedy)
    return tuple(given)
