"""Synchronous parameter server: every update waits for the gradient of every worker.

When: Equal workers and a server with a fast port; as the yardstick of the parameter servers.
Cost: The slowest worker sets the pace: E[X_{P:P}] seconds an update.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.push_pull.policy import Policy

__all__ = ["Sync"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync(ParameterServer):
    """Every update waits for the gradient of every worker, at a server."""

    def policy(self, workers: int) -> Policy:
        return Policy(k=workers)
