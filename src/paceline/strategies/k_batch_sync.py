"""K-batch-synchronous SGD: an update uses the first K mini-batches. A fast worker may compute several of them. The
other computations are cancelled.

When: The speed of a worker varies from batch to batch, and gradients should not be stale.
Cost: K E[X]/P seconds per update for exponential times. Staleness 0.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy
from paceline.strategies.shared.search_space import Tried, fractions


@dataclass(frozen=True, kw_only=True, slots=True)
class KBatchSync(ParameterServer):
    """An update uses the first k mini-batches; a fast worker may compute several."""

    k: int = field(
        default=1,
        metadata={"help": "number of mini-batches in an update", "tries": Tried(fractions, fractions)},
    )

    def policy(self, workers: int) -> Policy:
        return Policy(k=self.k, cancels=True, waits=False)
