"""K-batch-asynchronous SGD: an update uses the next K mini-batches, from any workers; a worker pulls and continues
without waiting for the update.

When: As k-async, if workers also differ in speed.
Cost: K E[X]/P seconds per update; mean staleness (P - 1)/K.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy
from paceline.strategies.shared.search_space import Tried, fractions


@dataclass(frozen=True, kw_only=True, slots=True)
class KBatchAsync(ParameterServer):
    """An update uses the next k mini-batches, even if they are stale; no worker waits."""

    k: int = field(
        default=1,
        metadata={"help": "number of mini-batches in an update", "tries": Tried(fractions, fractions)},
    )

    def policy(self, workers: int) -> Policy:
        return Policy(k=self.k, waits=False)
