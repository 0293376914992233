"""K-batch-asynchronous SGD: an update takes the next K mini-batches, whoever gives them; a worker pulls at once and
goes on.

When: As k-async, where workers also differ in speed.
Cost: K E[X]/P seconds an update; mean staleness (P - 1)/K.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.push_pull.policy import Policy

__all__ = ["KBatchAsync"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KBatchAsync(ParameterServer):
    """An update takes the next k mini-batches, however stale; no worker ever waits."""

    k: int = field(default=1, metadata={"help": "mini-batches whose gradients make up an update"})

    def policy(self, workers: int) -> Policy:
        return Policy(k=self.k, waits=False)
