"""K-asynchronous SGD: an update takes the first K workers' gradients, at whatever versions they hold; the others go on.

When: Between sync and async: less stale than async.
Cost: Between K E[X]/P and E[X_{K:P}] seconds an update; mean staleness (P - K)/K.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.push_pull.policy import Policy

__all__ = ["KAsync"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KAsync(ParameterServer):
    """An update takes the first k workers' gradients, however stale; the others go on."""

    k: int = field(default=1, metadata={"help": "workers whose gradients make up an update"})

    def policy(self, workers: int) -> Policy:
        return Policy(k=self.k)
