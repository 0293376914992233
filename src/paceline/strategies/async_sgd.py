"""Asynchronous SGD: each gradient is applied on arrival, even if it was computed at an old version of the parameters.

When: Throughput matters more than staleness, and workers differ in speed.
Cost: E[X]/P seconds per update; mean staleness P - 1. Also: Dean et al., "Large Scale Distributed Deep Networks",
2012.
Source: Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.shared.push_pull.policy import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Async(ParameterServer):
    """Each gradient is applied as soon as it arrives, even if it is stale."""

    def policy(self, workers: int) -> Policy:
        return Policy(k=1)
