"""One rank of a pipeline that is not drained between batches.

In step t, a rank runs the backward passes of batch t, and before each of them the forward passes that come first in
1F1B. Some of these belong to later batches. The end of the program drains the pipeline, so a checkpoint does too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from paceline.context import Batch, Context, Net
from paceline.schedules.pipeline import CONTINUOUS, Action, Phase, ahead, check_in_flight
from paceline.strategies.shared.pipelining.stage import Stage


@dataclass(slots=True)
class _OpenBatch:
    """A batch from its first forward pass to its last backward pass."""

    passes: AbstractContextManager[Any]
    micros: range
    opened_at: int
    """The step in which it was opened: the number of updates that its version of the weights includes."""


class ContinuousStage:
    """A rank's part in a pipeline without a flush."""

    def __init__(
        self,
        ctx: Context,
        net: Net,
        stage: Stage,
        order: str,
        microbatches: int,
        whole: Callable[[int], Batch],
    ) -> None:
        """`whole` returns the global batch of a step."""
        self._ctx = ctx
        self._net = net
        self._stage = stage
        self._order = order
        self._microbatches = microbatches
        self._whole = whole
        self._ahead = ahead(net.rank, net.size)
        self._open: dict[int, _OpenBatch] = {}
        self._forwarded = 0
        """Number of micro-batches that have passed forward."""
        self._numbered = 0
        """Number of micro-batches in the batches opened so far."""
        self._next = ctx.model.version
        """The step of the next batch to open."""

    async def compute(self, step: int) -> None:
        """Compute the gradient of the batch of this step."""
        if step not in self._open:
            self._open_next(step)
        micros = self._open[step].micros
        for micro in micros:
            while self._forwarded <= micro + self._ahead and self._has_next(step):
                await self._stage.run(Action(Phase.FORWARD, self._forwarded))
                self._forwarded += 1
            await self._stage.run(Action(Phase.BACKWARD, micro))
        done = self._open.pop(step)
        done.passes.__exit__(None, None, None)
        self._ctx.log.note_staleness(step - done.opened_at)
        # With two versions, the next batch uses the weights before this update on every stage.
        delays = not CONTINUOUS[self._order].whole_batches and self._net.size > 1
        if delays and self._next == step + 1 < self._ctx.log.steps:
            self._open_next(step)

    def _has_next(self, step: int) -> bool:
        """Return whether there is another micro-batch to send forward. Open its batch if it is the first."""
        if self._forwarded == self._numbered and self._next < self._ctx.log.steps:
            self._open_next(step)
        return self._forwarded < self._numbered

    def _open_next(self, step: int) -> None:
        """Open the next batch. Its passes use the weights of this moment, in step `step`."""
        passes = self._ctx.model.stages.batch(
            self._whole(self._next), self._microbatches, first=self._numbered
        )
        count = len(passes.__enter__())
        check_in_flight(self._order, self._net.size, count)
        self._open[self._next] = _OpenBatch(passes, range(self._numbered, self._numbered + count), step)
        self._numbered += count
        self._next += 1
