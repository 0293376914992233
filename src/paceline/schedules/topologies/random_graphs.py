"""Random graphs. Equal seeds give equal graphs.

random-regular  every peer has `degree` random neighbours (Kim and Vu, "Generating random regular graphs", 2003); almost
                always well connected from degree 3 on
erdos-renyi     every pair is connected with probability `p`, independently (Erdős and Rényi 1959, Gilbert 1959); almost
                always connected if p is well above ln(n)/n; the default is twice that
"""

from __future__ import annotations

import math

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.given import graph_of_networkx
from paceline.schedules.topologies.graph import Graph, check_size


def random_regular(peers: int, degree: int = 4, seed: int = 0) -> Graph:
    import networkx

    if not 0 <= degree < peers:
        bound = f"must be at least 0 and less than the number of peers, {peers}"
        raise ConfigurationError(
            "random-regular:degree", bound, degree, "use a smaller degree, or more peers"
        )
    if peers * degree % 2:
        bound = f"must be even if the number of peers, {peers}, is odd: every edge has two ends"
        raise ConfigurationError(
            "random-regular:degree", bound, degree, f"use {degree + 1}, or one more peer"
        )
    check_size(peers, peers * degree)
    return graph_of_networkx(networkx.random_regular_graph(degree, peers, seed))


def erdos_renyi(peers: int, p: float | None = None, seed: int = 0) -> Graph:
    import networkx

    chance = min(1.0, 2 * math.log(peers) / peers) if p is None else p
    if not 0 <= chance <= 1:
        raise ConfigurationError("erdos-renyi:p", "must be between 0 and 1", p, "it is a probability")
    check_size(peers, chance * peers * (peers - 1))
    return graph_of_networkx(networkx.fast_gnp_random_graph(peers, chance, seed))
