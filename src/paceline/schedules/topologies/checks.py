"""What mixing cannot bring to consensus: a graph in pieces, and weights that swap values for ever."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Graph, components
from paceline.schedules.topologies.mixing import Mixing

__all__ = ["check_connected", "check_settles"]

_ANYWAY = "allow_disconnected=True takes it as it is"


def check_connected(graph: Graph, remedy: str) -> None:
    """Every peer must hear of every other in the end. Weights are doubly stochastic: one direction brings the other."""
    pieces, sizes = np.unique(components(graph), return_counts=True)
    if len(pieces) > 1:
        raise ConfigurationError(
            "topology",
            "must be connected: components never agree with each other",
            f"{len(pieces)} components, the largest of {sizes.max()} peers",
            f"{remedy}; {_ANYWAY}",
        )


def check_settles(mixing: Mixing) -> None:
    """Refuse connected weights whose values go round for ever: an eigenvalue other than 1 has modulus 1."""
    period = _period(mixing)
    if period > 1:
        raise ConfigurationError(
            "weights",
            "must settle: with no weight on the diagonal, values may be swapped for ever",
            f"a matrix that oscillates with period {period}",
            f"leave some peer a share of its own value; {_ANYWAY}",
        )


def _period(mixing: Mixing) -> int:
    """The greatest common divisor of the lengths of all cycles along weights above 0."""
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
