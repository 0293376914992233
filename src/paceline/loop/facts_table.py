"""Messages of the workers' loops: facts about their gradients, and the number of steps of loops that have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.context import Batch
from paceline.links.receiving import RecvOperation
from paceline.loop.batch import LoopBatch
from paceline.loop.facts import StepFacts

if TYPE_CHECKING:
    from paceline.loop.context import LoopContext

FACTS = 2**31 + 1
"""Tag of the messages. Strategies use small tags."""


class FactsTable:
    """Received facts. A worker sends the facts before the gradient, so they also arrive first."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._receiving: dict[int, RecvOperation] = {}
        self._by_worker: dict[int, dict[int, StepFacts]] = {worker: {} for worker in context.workers}
        self._last: StepFacts | None = None
        self._ended: dict[int, int] = {}
        self._is_closed = False

    def ended(self) -> Mapping[int, int]:
        """Return the steps of each worker whose loop has ended."""
        self._drain()
        return self._ended

    def of(self, worker: int, step: int) -> StepFacts:
        """Return the facts about a gradient that has been received. Older ones of this worker are dropped."""
        self._drain()
        found = self._by_worker[worker]
        for old in [number for number in found if number < step]:
            del found[old]
        return found[step]

    def of_update(self, batches: Sequence[Batch]) -> StepFacts:
        """Return the facts of an update: those of the newest of its gradients, or of the newest received."""
        self._drain()
        known = [batch.facts for batch in batches if isinstance(batch, LoopBatch)]
        if known:
            return max(known, key=lambda facts: facts.step)
        assert self._last is not None, "a gradient has been received"
        return self._last

    def close(self) -> None:
        """Stop receiving. Facts that have been received can still be read."""
        self._is_closed = True
        for receive in self._receiving.values():
            receive.cancel()

    def _drain(self) -> None:
        """Take the messages that have arrived."""
        if self._is_closed:
            return
        net = self._context.net
        for worker, found in self._by_worker.items():
            while worker not in self._ended:
                if worker not in self._receiving:
                    self._receiving[worker] = net.recv(worker, tag=FACTS)
                if not self._receiving[worker].poll():
                    break
                receive = self._receiving.pop(worker)
                facts = StepFacts.unpack(receive.take().tensor)
                if facts.count < 0:
                    self._ended[worker] = facts.step
                    continue
                found[facts.step] = facts
                if self._last is None or facts.step >= self._last.step:
                    self._last = facts
