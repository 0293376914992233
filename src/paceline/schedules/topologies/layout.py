"""Positions of the peers in a picture, and the lines of their edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.schedules.topologies.circulant import circle
from paceline.schedules.topologies.graph import Floats, Ints
from paceline.schedules.topologies.topology import Topology

_SPRING_PEERS = (
    400  # from 500 peers on, networkx needs scipy for a spring layout, and scipy is not a dependency
)
_LARGEST_RADIUS, _SMALLEST_RADIUS, _LARGEST_BEND = 17.0, 2.0, 64.0


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """A drawn edge: straight, or bent if a straight line would cross another peer."""

    start: Floats
    """Position of the sender."""
    bend: Floats
    """Control point of a quadratic curve; the midpoint if the line is straight."""
    end: Floats
    both_ways: bool


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """Positions in a box of the requested width, and the largest radius at which peers do not touch."""

    places: Floats
    height: float
    radius: float
    spacing: float
    """Smallest distance between two peers."""

    def lines(self, edges: Ints) -> Iterator[DrawnEdge]:
        """Yield one line for each pair of peers with an edge."""
        pairs = {(int(receiver), int(sender)) for receiver, sender in edges}
        for receiver, sender in sorted(pairs):
            both_ways = (sender, receiver) in pairs
            if not both_ways or sender < receiver:
                start, end = self.places[sender], self.places[receiver]
                yield DrawnEdge(start, self._bend(sender, receiver), end, both_ways)

    def _bend(self, sender: int, receiver: int) -> Floats:
        start, end = self.places[sender], self.places[receiver]
        middle: Floats = (start + end) / 2
        if not self._crosses_a_peer(sender, receiver):
            return middle
        along = (end - start) / np.linalg.norm(end - start)
        aside = np.array([-along[1], along[0]])
        outwards = 1.0 if aside @ (middle - self.places.mean(axis=0)) >= 0 else -1.0
        bent: Floats = middle + outwards * min(0.7 * self.spacing, _LARGEST_BEND) * aside
        return bent

    def _crosses_a_peer(self, sender: int, receiver: int) -> bool:
        start, end = self.places[sender], self.places[receiver]
        others = np.delete(self.places, [sender, receiver], axis=0) - start
        share = np.clip(others @ (end - start) / max(float((end - start) @ (end - start)), 1e-9), 0, 1)
        away = np.linalg.norm(others - share[:, None] * (end - start), axis=1)
        return bool((away < self.radius + 1).any())


def lay_out(topology: Topology, width: float) -> Layout:
    """Return the topology's own positions, or a spring layout, scaled to `width`."""
    places = _springs(topology) if topology.positions is None else topology.positions
    places = places - places.min(axis=0)
    extent = places.max(axis=0)
    scale = width / max(float(extent.max()), 1e-9)
    # A narrower picture is centred in the box.
    places = places * scale + [(width - extent[0] * scale) / 2, 0]
    spacing = _spacing(places)
    radius = float(np.clip(0.3 * spacing, _SMALLEST_RADIUS, _LARGEST_RADIUS))
    return Layout(places=places, height=float(extent[1]) * scale, radius=radius, spacing=spacing)


def _springs(topology: Topology) -> Floats:
    if not 1 < topology.peers <= _SPRING_PEERS:
        return circle(topology.peers)
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(topology.peers))
    graph.add_edges_from(edge for step in range(topology.period) for edge in topology.edges(step).tolist())
    start = dict(enumerate(circle(topology.peers)))
    found = networkx.spring_layout(graph, pos=start, iterations=300, seed=0)
    return np.array([found[peer] for peer in range(topology.peers)])


def _spacing(places: Floats) -> float:
    nearest = np.inf
    for place in range(1, len(places)):
        nearest = min(nearest, float(np.linalg.norm(places[:place] - places[place], axis=1).min()))
    return nearest if np.isfinite(nearest) else 10 * _LARGEST_RADIUS
