"""K-batch-synchronous SGD: an update takes the first K mini-batches, of which a fast worker may give several; the rest
are cancelled.

When: Speeds that vary from batch to batch, and no wish for stale gradients.
Cost: K E[X]/P seconds an update for exponential times. Staleness 0.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.push_pull.policy import Policy

__all__ = ["KBatchSync"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KBatchSync(ParameterServer):
    """An update takes the first k mini-batches; a fast worker may give several."""

    k: int = field(default=1, metadata={"help": "mini-batches whose gradients make up an update"})

    def policy(self, workers: int) -> Policy:
        return Policy(k=self.k, cancels=True, waits=False)
