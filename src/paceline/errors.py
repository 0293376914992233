"""Everything that Paceline raises on purpose.

PacelineError
├── ConfigurationError         an argument is wrong; also a ValueError
│   ├── UnknownNameError       a name is not in its table
│   └── DamagedError           a saved file is not whole
├── TaskError                  the user's task file or factory failed
├── SaveError                  a run or a page could not be written; also an OSError
└── RunError                   a run could not go on
    ├── WorkerError            the user's code raised on one rank
    │   └── OutOfMemoryError   a rank has not enough memory
    ├── LossNotFiniteError     a loss became NaN or infinite
    ├── GradientNotFiniteError a gradient became NaN or infinite, and the loss did not
    ├── PeerLost               a rank is gone
    ├── DeadlineError          a wait took longer than it may
    ├── DeadlockError          every simulated rank waits for another
    ├── MismatchError          two ranks disagree on a tensor's dtype or shape
    └── FrameError             bytes on a link are not a frame
Cancelled                      not an error: unwinds a computation that its strategy cancelled
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

__all__ = [
    "Cancelled",
    "ConfigurationError",
    "DamagedError",
    "DeadlineError",
    "DeadlockError",
    "FrameError",
    "GradientNotFiniteError",
    "LossNotFiniteError",
    "MismatchError",
    "OutOfMemoryError",
    "PacelineError",
    "PeerLost",
    "RunError",
    "SaveError",
    "TaskError",
    "UnknownNameError",
    "WorkerError",
]


class PacelineError(Exception):
    """The base of all errors that Paceline raises on purpose."""


class ConfigurationError(PacelineError, ValueError):
    """An argument was refused. The message names the argument, the bound, the value and the remedy."""

    def __init__(self, argument: str, bound: str, value: object, remedy: str = "") -> None:
        super().__init__(argument, bound, value, remedy)
        self.argument = argument
        self.bound = bound
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.argument} {self.bound}, but got {self.value!r}"
        return f"{text}; {self.remedy}" if self.remedy else text


class UnknownNameError(ConfigurationError):
    """A name that is not in its table. The message lists the valid names and the nearest."""

    def __init__(self, argument: str, value: str, valid: Iterable[str]) -> None:
        names = sorted(valid)
        near = difflib.get_close_matches(str(value), names, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "choose one of these"
        super().__init__(argument, f"must be one of {', '.join(names) or '(none)'}", value, remedy)
        self.args = (argument, value, names)


class DamagedError(ConfigurationError):
    """A saved file was cut off, was changed, or is missing. The message names it and says what is wrong with it."""

    def __init__(self, folder: str, file: str, reason: str, remedy: str = "save it again") -> None:
        bound = f"must hold a whole {file} that can be read"
        super().__init__("directory", bound, folder, f"{remedy} ({reason})")
        self.args = (folder, file, reason, remedy)
        self.folder = folder
        self.file = file
        self.reason = reason


class TaskError(PacelineError):
    """The user's task could not be loaded or built. The user's own traceback is in the message."""


class SaveError(PacelineError, OSError):
    """Something could not be written: the disk is full, or the folder refuses. What was there before is whole."""

    def __str__(self) -> str:
        return f"{self.filename} could not be saved: {self.strerror}"


class RunError(PacelineError):
    """A run ended before its time."""

    holds: Mapping[int, str] = MappingProxyType({})
    """What each rank holds of the model, in words, where it holds a part of it."""

    def who(self, rank: int) -> str:
        """A rank, with what it holds: "rank 3 (stage 1 of 2: layers 4 … 7)"."""
        holds = self.holds.get(rank)
        return f"rank {rank} ({holds})" if holds else f"rank {rank}"


class WorkerError(RunError):
    """The user's model, loss, data or optimizer raised on one rank."""

    def __init__(self, rank: int, step: int, traceback: str) -> None:
        super().__init__(rank, step, traceback)
        self.rank = rank
        self.step = step
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.who(self.rank)} failed in step {self.step}:\n{self.traceback.rstrip()}"


class OutOfMemoryError(WorkerError):
    """A rank has not enough memory."""

    def __init__(self, rank: int, step: int, traceback: str, wanted: str) -> None:
        """`wanted`: how much it asked for in vain, in words; empty if that is not known."""
        super().__init__(rank, step, traceback)
        self.args = (rank, step, traceback, wanted)
        self.wanted = wanted

    def __str__(self) -> str:
        wanted = f": {self.wanted} more could not be had" if self.wanted else ""
        return (
            f"{self.who(self.rank)} has not enough memory in step {self.step}{wanted}; with zero:stage=3 or pipeline "
            f"each worker holds less, and smaller batches or Task(accumulate=…) need less\n{self.traceback.rstrip()}"
        )


class LossNotFiniteError(RunError):
    """A loss became NaN or infinite."""

    def __init__(self, rank: int, step: int, loss: float) -> None:
        super().__init__(rank, step, loss)
        self.rank = rank
        self.step = step
        self.loss = loss

    def __str__(self) -> str:
        return (
            f"the loss is {self.loss} on {self.who(self.rank)} in step {self.step}; "
            "lower the learning rate, clip the gradients (Task(clip_norm=…)), or look at the data of that step"
        )


class GradientNotFiniteError(RunError):
    """A gradient has a value that is NaN or infinite, though the loss is finite. It was not applied anywhere."""

    def __init__(self, rank: int, step: int, parameter: str) -> None:
        super().__init__(rank, step, parameter)
        self.rank = rank
        self.step = step
        self.parameter = parameter

    def __str__(self) -> str:
        return (
            f"the gradient of {self.parameter} is not finite on {self.who(self.rank)} in step {self.step}, though the "
            "loss is; look in that layer and those after it for a square root, a logarithm or a division at zero, or "
            "for a backward of your own"
        )


class PeerLost(RunError):  # noqa: N818  (a strategy may catch it and go on: an event more than an error)
    """A rank is gone: it died, or its host did. Raised at the await points of the ranks that need it."""

    def __init__(self, rank: int, reason: str = "", waiting: str = "") -> None:
        super().__init__(rank, reason, waiting)
        self.rank = rank
        self.reason = reason
        self.waiting = waiting

    def __str__(self) -> str:
        text = f"{self.who(self.rank)} is lost"
        if self.reason:
            text += f" ({self.reason})"
        return f"{text}; {self.waiting}" if self.waiting else text


class DeadlineError(RunError):
    """A wait took longer than its deadline. `view` says what is known of the rank that it was for."""

    def __init__(self, rank: int, operation: str, awaited: str, deadline_s: float, view: str = "") -> None:
        super().__init__(rank, operation, awaited, deadline_s, view)
        self.rank = rank
        self.operation = operation
        self.awaited = awaited
        self.deadline_s = deadline_s
        self.view = view

    @property
    def culprit(self) -> int | None:
        """The rank that the wait was for, if it is one."""
        _, _, number = self.awaited.partition("rank ")
        return int(number) if number.isdecimal() else None

    def __str__(self) -> str:
        who = self.who(self.rank) if self.rank >= 0 else "the driver"
        awaited = self.awaited if self.culprit is None else self.who(self.culprit)
        text = f"{who} waited {self.deadline_s:g} s in {self.operation} for {awaited}"
        if self.view:
            text += f"; {self.view}"
        return f"{text}; if that is ordinary here, raise deadline_s of the cluster"


class DeadlockError(RunError):
    """Every simulated rank that has not finished waits for another."""

    def __init__(self, waits: Iterable[str]) -> None:
        self.waits = tuple(waits)
        super().__init__(self.waits)

    def __str__(self) -> str:
        shown = list(self.waits[:20])
        if len(self.waits) > len(shown):
            shown.append(f"… and {len(self.waits) - len(shown)} more")
        return "deadlock: nobody can go on\n  " + "\n  ".join(shown)


class MismatchError(RunError):
    """Two ranks disagree about the tensor that one sends to the other."""

    def __init__(self, sender: int, sent: str, receiver: int, expected: str) -> None:
        super().__init__(sender, sent, receiver, expected)
        self.sender = sender
        self.receiver = receiver
        self.dtype = ""
        self.numbers: tuple[float, ...] = ()

    def about(self, dtype: str, numbers: tuple[float, ...]) -> MismatchError:
        """Note what the message's header said, for whoever can say more about it."""
        self.dtype = dtype
        self.numbers = numbers
        return self

    def __str__(self) -> str:
        sender, sent, receiver, expected = self.args
        return f"{self.who(sender)} sent {sent}, but {self.who(receiver)} expected {expected}"


class FrameError(RunError):
    """Bytes on a link that are not a frame of this run."""


class Cancelled(BaseException):
    """Unwinds a cancelled computation. A BaseException, so that no user's `except Exception` swallows it."""
