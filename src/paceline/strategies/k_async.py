"""K-asynchronous SGD: an update uses the first K workers' gradients, of any version; the other workers continue.

When: As a compromise between sync and async: gradients are less stale than with async.
Cost: Between K E[X]/P and E[X_{K:P}] seconds per update; mean staleness (P - K)/K.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy
from paceline.strategies.shared.search_space import Tried, fractions


@dataclass(frozen=True, kw_only=True, slots=True)
class KAsync(ParameterServer):
    """An update uses the first k workers' gradients; the other workers continue."""

    k: int = field(
        default=1, metadata={"help": "number of workers in an update", "tries": Tried(fractions, fractions)}
    )

    def policy(self, workers: int) -> Policy:
        return Policy(k=self.k)
