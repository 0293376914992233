"""Asynchronous SGD: every gradient is an update, at whatever version of the parameters it was computed.

When: Throughput matters more than staleness; workers uneven.
Cost: E[X]/P seconds an update; mean staleness P - 1. Also: Dean et al., "Large Scale Distributed Deep Networks",
2012.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.push_pull.policy import Policy

__all__ = ["Async"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Async(ParameterServer):
    """Every gradient is an update as soon as it comes, however stale."""

    def policy(self, workers: int) -> Policy:
        return Policy(k=1)
