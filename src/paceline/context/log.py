"""`ctx.log`: records and metrics."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Log(Protocol):
    """Records and metrics of a run."""

    @property
    def steps(self) -> int:
        """Return the total number of updates at the end of this program.

        This is the requested number of updates, or fewer once the target is reached. If the program ends at a
        checkpoint and is started again, it is the number of updates at that checkpoint.
        """
        ...

    def report(self, **values: float) -> None:
        """Add values to the record of the current step."""
        ...

    def record(self, step: int, *, loss: float, samples: int, force: bool = False) -> None:
        """Write the record of one update made by this rank alone. For strategies whose ranks update independently.

        `step` counts the updates of all ranks so far, as seen by this rank. `samples` is the number of samples in this
        update. The run's history is the records of all ranks in order of time. The first worker evaluates about as
        often as requested. If workers publish their parameters (`observe`), an evaluation also records `consensus`;
        with `force`, a record without an evaluation has it too.
        """
        ...

    def inspects(self, step: int) -> bool:
        """Return whether the run reads the reporter's parameters after this step, to evaluate, average or save
        them."""
        ...

    def observe(
        self,
        step: int | None = None,
        *,
        force: bool = False,
        own_metric: bool = False,
        parameters: Tensor | None = None,
    ) -> Awaitable[None]:
        """Publish this worker's parameters, and evaluate the mean of all workers' parameters if an evaluation is due.

        If workers publish parameters, the run's model is their mean. This is a measurement and costs no run time.
        Every synchronous worker calls this after each of its steps, and waits for the others in the steps that are
        evaluated: those that are due, or all with `force`. The record of such a step has `consensus`: the root mean
        square distance of the workers from their mean. With `own_metric` each worker's own parameters are evaluated
        after the last step, for `run.peer_metrics`.

        Workers that update independently call this without a step: it publishes `parameters` and does not wait. At
        the end they call it with the last step.
        """
        ...

    def note_staleness(self, staleness: int) -> None:
        """Count a gradient in the run's histogram: the version at its update minus the version at its pull."""
        ...

    def note_lost(self, rank: int) -> None:
        """Record that the run continues without a rank.

        Raises PeerLost if the run cannot continue: the rank is its reporter, or the role is not `expendable`.
        """
        ...
