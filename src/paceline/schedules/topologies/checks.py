"""Checks for topologies that cannot reach consensus: disconnected graphs, and weights that oscillate."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Graph, components
from paceline.schedules.topologies.mixing import Mixing

_ANYWAY = "allow_disconnected=True accepts it"


def check_connected(graph: Graph, remedy: str) -> None:
    """Raise an error if the graph is disconnected. Weak connection suffices, as weights are doubly stochastic."""
    pieces, sizes = np.unique(components(graph), return_counts=True)
    if len(pieces) > 1:
        raise ConfigurationError(
            "topology",
            "must be connected: separate components never reach consensus",
            f"{len(pieces)} components, the largest of {sizes.max()} peers",
            f"{remedy}; {_ANYWAY}",
        )


def check_settles(mixing: Mixing) -> None:
    """Raise an error for connected weights that oscillate: an eigenvalue other than 1 has modulus 1."""
    period = _period(mixing)
    if period > 1:
        raise ConfigurationError(
            "weights",
            "must converge: without weight on the diagonal, values may be swapped forever",
            f"a matrix that oscillates with period {period}",
            f"give at least one peer a weight for its own value; {_ANYWAY}",
        )


def _period(mixing: Mixing) -> int:
    """Return the greatest common divisor of the lengths of all cycles along weights above 0."""
    if (mixing.weights[mixing.receivers == mixing.senders] > 0).any():
        return 1
    level = {0: 0}
    waiting = deque([0])
    period = 0
    while waiting:
        rank = waiting.popleft()
        for peer, weight in mixing.row(rank):
            if not weight:
                continue
            if peer not in level:
                level[peer] = level[rank] + 1
                waiting.append(peer)
            period = math.gcd(period, level[rank] + 1 - level[peer])
    return period
