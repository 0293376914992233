"""`ctx.log`: what is written down."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Log"]


class Log(Protocol):
    """What is written down."""

    @property
    def steps(self) -> int:
        """How many updates there are when this program ends.

        As many as the run was asked for, or fewer once its target is reached; or those until the next checkpoint, after
        which the program begins again.
        """
        ...

    def report(self, **values: float) -> None:
        """Add values to the record of the current step."""
        ...

    def record(self, step: int, *, loss: float, samples: int, force: bool = False) -> None:
        """Write the record of one update of this rank's own, where each rank updates the parameters at its own pace.

        `step` counts the updates of all ranks so far, as this rank sees them; `samples` are those of this update. The
        run's history is the records of all ranks in order of time. The first worker evaluates about as often as asked;
        where workers show their parameters it then notes `consensus`, as in `observe`; also if `force` is true.
        """
        ...

    def inspects(self, step: int) -> bool:
        """Whether the run looks at the reporter's parameters after this step: to evaluate or to keep them."""
        ...

    def measuring(self) -> AbstractContextManager[None]:
        """What is done in it is measuring, not training: its time is taken off the run's clock."""
        ...

    def show(self, parameters: Tensor | None = None) -> None:
        """Let the run see this worker's own parameters (or what is given instead) as they are now.

        Where workers show theirs, the run's model is their mean. It is measuring, and costs the run nothing.
        """
        ...

    def observe(self, step: int, *, force: bool = False, own_metric: bool = False) -> Awaitable[None]:
        """Let the run look at the mean of all workers' parameters after a step, if it wants to, or if `force` is true.

        Every worker calls it after each of its steps, and waits for the others in those steps that are looked at. The
        record of such a step has `consensus`: the root of the mean squared distance of the workers from their mean.
        With `own_metric` each worker's own parameters are evaluated after the last step, for `run.peer_metrics`.
        """
        ...

    def note_staleness(self, staleness: int) -> None:
        """Count a gradient in the run's histogram: the version at its update minus the version at its pull."""
        ...

    def note_lost(self, rank: int) -> None:
        """Write into the run's record that it goes on without a rank."""
        ...
