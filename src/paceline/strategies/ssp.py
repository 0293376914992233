"""Stale synchronous parallel: asynchronous, but a worker may be at most `staleness` gradients ahead of the slowest.

When: Temporary stragglers, with a bound on staleness.
Cost: as `async` while no worker is blocked. In the long run, a worker that is always slow limits the speed of all
workers.
Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy
from paceline.strategies.shared.search_space import tried


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleSynchronous(ParameterServer):
    """Asynchronous, but no worker gets too far ahead of the slowest."""

    staleness: int = field(
        default=3,
        metadata={
            "help": "gradients that a worker may be ahead of the slowest",
            "tries": tried(1, 3, 10, leads=True),
        },
    )

    def policy(self, workers: int) -> Policy:
        return Policy(k=1, slack=self.staleness)
