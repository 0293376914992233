"""A graph of peers without weights: the edges in each step of its period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigurationError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_EDGES = 10_000_000


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Graph:
    """Peers 0, 1, 2, … and their edges. A time-varying graph has the edges of each step of its period."""

    peers: int
    steps: tuple[Ints, ...]
    """Edges of each step, as rows (receiver, sender), without duplicates or self-loops."""
    positions: Floats | None = None
    """Positions of the peers in a picture, as rows (x, y), y downwards; None if unknown."""


def directed_edges(receivers: npt.ArrayLike, senders: npt.ArrayLike, peers: int) -> Ints:
    """Return the edges in order, without duplicates or self-loops."""
    to, source = np.asarray(receivers, np.int64), np.asarray(senders, np.int64)
    keys = np.sort((to * peers + source)[to != source])
    keys = keys[np.diff(keys, prepend=-1) > 0]  # np.unique hashes, which is slower than sorting
    return np.stack(np.divmod(keys, peers), axis=1)


def undirected_edges(ends: npt.ArrayLike, other_ends: npt.ArrayLike, peers: int) -> Ints:
    """Return the edges in both directions, in order, without duplicates or self-loops."""
    one, other = np.asarray(ends, np.int64), np.asarray(other_ends, np.int64)
    return directed_edges(np.concatenate([one, other]), np.concatenate([other, one]), peers)


def check_size(peers: int, edges: float) -> None:
    """Raise an error if the edges of a graph would fill the memory. Call it before creating them."""
    if edges > _MOST_EDGES:
        bound = f"must have at most {_MOST_EDGES:,} edges"
        remedy = "use fewer peers, or a topology of smaller degree, such as exponential"
        raise ConfigurationError("topology", bound, f"{peers:,} peers with {edges:,.0f} edges", remedy)


def components(graph: Graph) -> Ints:
    """Return the lowest peer in each peer's component, over the edges of all steps in both directions."""
    edges = np.concatenate(graph.steps)
    ends, other_ends = np.concatenate([edges, edges[:, ::-1]]).T
    label = np.arange(graph.peers)
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, ends, label[other_ends])
        # A label is itself a peer with an equal or lower label, so each pass halves long paths.
        lowest = lowest[lowest]
        if np.array_equal(lowest, label):
            return label
        label = lowest
