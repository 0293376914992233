"""Stale synchronous parallel: asynchronous, but no worker may be more than a bound of gradients ahead of the slowest.

When: Stragglers that come and go, with a bound on how far they fall behind.
Cost: as `async` while workers keep pace; a worker that is always slow sets everyone's long-run rate, for any bound.
Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.push_pull.policy import Policy

__all__ = ["StaleSynchronous"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleSynchronous(ParameterServer):
    """Asynchronous, but no worker gets too far ahead of the slowest."""

    staleness: int = field(default=3, metadata={"help": "how far ahead of the slowest a worker may begin"})

    def policy(self, workers: int) -> Policy:
        return Policy(k=1, slack=self.staleness)
