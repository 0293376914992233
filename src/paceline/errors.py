"""The exceptions that Paceline raises on purpose.

PacelineError
├── ConfigurationError             an argument is wrong; also a ValueError
│   ├── UnknownNameError           a name is not in its table
│   └── DamagedError               a saved file is incomplete or damaged
├── TaskError                      the user's task file or factory failed
├── SaveError                      a run or a page could not be written; also an OSError
└── RunError                       a run failed
    ├── WorkerError                the user's code raised an error on one rank
    │   └── OutOfMemoryError       a rank ran out of memory
    ├── LossNotFiniteError         a loss became NaN or infinite
    ├── GradientNotFiniteError     a gradient became NaN or infinite, but the loss is finite
    ├── PeerLost                   a rank died
    ├── EarlyEndError              a user's loop has ended before the loops of other ranks
    ├── DeadlineError              a wait exceeded its timeout
    ├── DeadlockError              every simulated rank waits for another
    ├── MismatchError              two ranks disagree on a tensor's dtype or shape
    └── FrameError                 bytes on a link are not a valid frame
Cancelled                          not an error: unwinds a computation that its strategy cancelled
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType


class PacelineError(Exception):
    """Base class of all errors that Paceline raises on purpose."""

    code = "PL-000"
    """Stable code of this kind of error. `paceline explain CODE` prints causes and remedies."""


class ConfigurationError(PacelineError, ValueError):
    """An invalid argument. The message names the argument, the bound, the value and the remedy."""

    code = "PL-010"

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
    """A name that is not in its table. The message has the valid names, and the closest one or its alias."""

    code = "PL-011"

    def __init__(self, argument: str, value: str, valid: Iterable[str], aliases: Iterable[str] = ()) -> None:
        names = sorted(valid)
        spelled = {name.lower(): name for name in (*aliases, *names)}
        near = [spelled[name] for name in difflib.get_close_matches(str(value).lower(), spelled, n=1)]
        remedy = f"did you mean {near[0]!r}?" if near else "choose one of these"
        super().__init__(argument, f"must be one of {', '.join(names) or '(none)'}", value, remedy)
        self.args = (argument, value, names, sorted(aliases))
        self.valid = tuple(names)
        self.nearest = near[0] if near else None


class DamagedError(ConfigurationError):
    """A saved file that is truncated, changed or missing. The message names the file and the damage."""

    code = "PL-012"

    def __init__(self, folder: str, file: str, reason: str, remedy: str = "save it again") -> None:
        bound = f"must hold a whole {file} that can be read"
        super().__init__("directory", bound, folder, f"{remedy} ({reason})")
        self.args = (folder, file, reason, remedy)
        self.folder = folder
        self.file = file
        self.reason = reason


class TaskError(PacelineError):
    """An error while loading or building the user's task. The message contains the user's traceback."""

    code = "PL-020"

    def __init__(self, failure: str, traceback: str) -> None:
        """`failure` names the part of the task that could not be built, sent or loaded."""
        super().__init__(failure, traceback)
        self.failure = failure
        self.traceback = traceback

    @property
    def cause(self) -> str:
        """Last line of the traceback: type and message of the user's exception."""
        return _last_line(self.traceback)

    def __str__(self) -> str:
        return f"{self.failure}:\n{self.traceback}"


class SaveError(PacelineError, OSError):
    """A failed write: the disk is full, or the folder is not writable. The previous file is unchanged."""

    code = "PL-021"

    def __str__(self) -> str:
        return f"{self.filename} could not be saved: {self.strerror}"


class RunError(PacelineError):
    """A run that failed before its end."""

    code = "PL-030"

    holds: Mapping[int, str] = MappingProxyType({})
    """Description of the part of the model on each rank, for ranks that have only a part."""

    def who(self, rank: int) -> str:
        """Return the rank and its part of the model as text: "rank 3 (stage 1 of 2: layers 4 … 7)"."""
        holds = self.holds.get(rank)
        return f"rank {rank} ({holds})" if holds else f"rank {rank}"


class WorkerError(RunError):
    """An exception raised on one rank by the user's model, loss, data or optimizer."""

    code = "PL-031"

    def __init__(self, rank: int, step: int, traceback: str) -> None:
        super().__init__(rank, step, traceback)
        self.rank = rank
        self.step = step
        self.traceback = traceback

    @property
    def cause(self) -> str:
        """Last line of the traceback: type and message of the user's exception."""
        return _last_line(self.traceback)

    def __str__(self) -> str:
        return f"{self.who(self.rank)} failed in step {self.step}:\n{self.traceback.rstrip()}"


class OutOfMemoryError(WorkerError):
    """A rank that ran out of memory."""

    code = "PL-032"

    def __init__(self, rank: int, step: int, traceback: str, wanted: str) -> None:
        """`wanted` is the size of the failed allocation, as text; empty if unknown."""
        super().__init__(rank, step, traceback)
        self.args = (rank, step, traceback, wanted)
        self.wanted = wanted

    def __str__(self) -> str:
        wanted = f": could not allocate {self.wanted}" if self.wanted else ""
        return (
            f"{self.who(self.rank)} is out of memory in step {self.step}{wanted}; each worker needs less memory "
            f"with zero:stage=3 or pipeline, with smaller batches, or with Task(accumulate=…)\n"
            f"{self.traceback.rstrip()}"
        )


class LossNotFiniteError(RunError):
    """A loss that became NaN or infinite."""

    code = "PL-033"

    def __init__(self, rank: int, step: int, loss: float, cause: str = "") -> None:
        """`cause` describes the reason and the remedy; empty if unknown."""
        super().__init__(rank, step, loss, cause)
        self.rank = rank
        self.step = step
        self.loss = loss
        self.cause = cause

    def __str__(self) -> str:
        remedy = "lower the learning rate, clip the gradients (Task(clip_norm=…)), or look at the data of that step"
        found = self.cause or remedy
        return f"the loss is {self.loss} on {self.who(self.rank)} in step {self.step}; {found}"


class GradientNotFiniteError(RunError):
    """A gradient with a NaN or infinite value, although the loss is finite. It was not applied on any rank."""

    code = "PL-034"

    def __init__(self, rank: int, step: int, parameter: str, scale: float | None = None) -> None:
        """`scale` is the loss scale, if it has fallen below 1 with precision="fp16"."""
        super().__init__(rank, step, parameter, scale)
        self.rank = rank
        self.step = step
        self.parameter = parameter
        self.scale = scale

    def __str__(self) -> str:
        if self.scale is not None:
            return (
                f"the gradient of {self.parameter} is not finite on {self.who(self.rank)} in step {self.step}: it is "
                f"too large for float16, and the loss scale has fallen to {self.scale:g}, below 1; use precision="
                '"bf16" or "fp32", or lower the learning rate'
            )
        return (
            f"the gradient of {self.parameter} is not finite on {self.who(self.rank)} in step {self.step}, though the "
            "loss is; look in this layer and the following ones for a square root, a logarithm or a division at "
            "zero, or for a custom backward"
        )


class PeerLost(RunError):  # noqa: N818  (a strategy may catch it and go on: an event more than an error)
    """A rank that died, alone or with its host. Raised at the await points of ranks that wait for it."""

    code = "PL-035"

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


class EarlyEndError(RunError):
    """A user's loop that ended while the loop of another rank continues. Synchronous strategies need both."""

    code = "PL-042"

    def __init__(self, rank: int, steps: int, waiting: int, waiting_steps: int) -> None:
        """The loop of `rank` ended after `steps` steps. The loop of `waiting` has begun step `waiting_steps`."""
        super().__init__(rank, steps, waiting, waiting_steps)
        self.rank = rank
        self.steps = steps
        self.waiting = waiting
        self.waiting_steps = waiting_steps

    def __str__(self) -> str:
        return (
            f"the loop of rank {self.rank} ended after {self.steps} steps, but rank {self.waiting} is in step "
            f"{self.waiting_steps}; every rank must call optimizer.step() the same number of times: break out of the "
            "loop on all ranks, or choose an asynchronous strategy"
        )


class DeadlineError(RunError):
    """A wait that exceeded its timeout. `view` describes the state of the awaited rank."""

    code = "PL-036"

    def __init__(self, rank: int, operation: str, awaited: str, deadline_s: float, view: str = "") -> None:
        super().__init__(rank, operation, awaited, deadline_s, view)
        self.rank = rank
        self.operation = operation
        self.awaited = awaited
        self.deadline_s = deadline_s
        self.view = view

    @property
    def culprit(self) -> int | None:
        """The awaited rank; None if the wait was not for one rank."""
        _, _, number = self.awaited.partition("rank ")
        return int(number) if number.isdecimal() else None

    def __str__(self) -> str:
        who = self.who(self.rank) if self.rank >= 0 else "the driver"
        awaited = self.awaited if self.culprit is None else self.who(self.culprit)
        text = f"{who} waited {self.deadline_s:g} s in {self.operation} for {awaited}"
        if self.view:
            text += f"; {self.view}"
        return f"{text}; if such waits are normal here, increase deadline_s of the cluster"


class DeadlockError(RunError):
    """A deadlock: every simulated rank that has not finished waits for another."""

    code = "PL-037"

    def __init__(self, waits: Iterable[str]) -> None:
        self.waits = tuple(waits)
        super().__init__(self.waits)

    def __str__(self) -> str:
        shown = list(self.waits[:20])
        if len(self.waits) > len(shown):
            shown.append(f"… and {len(self.waits) - len(shown)} more")
        return "deadlock: no rank can proceed\n  " + "\n  ".join(shown)


class MismatchError(RunError):
    """Two ranks that disagree on the dtype or shape of a tensor sent from one to the other."""

    code = "PL-038"

    def __init__(self, sender: int, sent: str, receiver: int, expected: str) -> None:
        super().__init__(sender, sent, receiver, expected)
        self.sender = sender
        self.sent = sent
        self.receiver = receiver
        self.expected = expected
        self.dtype = ""
        self.numbers: tuple[float, ...] = ()

    def about(self, dtype: str, numbers: tuple[float, ...]) -> MismatchError:
        """Store the dtype and numbers of the message's header, for a more detailed error message."""
        self.dtype = dtype
        self.numbers = numbers
        return self

    def __str__(self) -> str:
        return f"{self.who(self.sender)} sent {self.sent}, but {self.who(self.receiver)} expected {self.expected}"


class FrameError(RunError):
    """Bytes on a link that are not a frame of this run."""

    code = "PL-039"


class Cancelled(BaseException):
    """Ends a cancelled computation. It is a BaseException, so that a user's `except Exception` does not catch it."""


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]
