"""Synchronous parameter server: every update waits for the gradient of every worker.

When: Workers of equal speed and a server with a fast port; as the reference for the other parameter servers.
Cost: E[X_{P:P}] seconds per update, the time of the slowest worker.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync(ParameterServer):
    """A server waits for the gradient of every worker before each update."""

    def policy(self, workers: int) -> Policy:
        return Policy(k=workers)
