"""A star: all peers are connected to peer 0 only; gap 1/n with Metropolis-Hastings weights."""

from __future__ import annotations

import numpy as np

from paceline.schedules.topologies.circulant import circle
from paceline.schedules.topologies.graph import Graph, undirected_edges


def star(peers: int) -> Graph:
    leaves = np.arange(1, peers)
    around = circle(peers - 1) if peers > 1 else np.zeros((0, 2))
    return Graph(
        peers=peers,
        steps=(undirected_edges(np.zeros_like(leaves), leaves, peers),),
        positions=np.concatenate([np.zeros((1, 2)), around]),
    )
