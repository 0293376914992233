"""K-synchronous SGD: an update uses the first K workers' gradients and cancels the others.

When: There are a few stragglers, and gradients should not be stale.
Cost: E[X_{K:P}] seconds per update; P - K computations are discarded each time. Staleness 0.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy
from paceline.strategies.shared.search_space import Tried, fractions


@dataclass(frozen=True, kw_only=True, slots=True)
class KSync(ParameterServer):
    """An update uses the first k workers' gradients and cancels the others."""

    k: int = field(
        default=1, metadata={"help": "number of workers in an update", "tries": Tried(fractions, fractions)}
    )

    def policy(self, workers: int) -> Policy:
        return Policy(k=self.k, cancels=True)
