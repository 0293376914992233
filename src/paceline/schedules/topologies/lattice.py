"""Peers in rows and columns, and in more dimensions.

path       a single row, its ends not connected
grid       rows and columns; torus: the same with opposite sides connected
hypercube  2^d peers, connected if their numbers differ in one bit; gap 2/(d + 1)

By default a grid or torus has the number of rows that makes it closest to a square. The parameter `rows` overrides it.
A prime number of peers is rejected, because only one row would be possible. The torus of s x s peers has gap (4/5)
sin^2(pi/s), s >= 4. If opposite sides are already adjacent (2 rows), they are connected once.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Floats, Graph, Ints, undirected_edges


def path(peers: int) -> Graph:
    return grid(peers, rows=1)


def grid(peers: int, rows: int | None = None) -> Graph:
    places = _numbered("grid", peers, rows)
    edges = [(places[1:], places[:-1]), (places[:, 1:], places[:, :-1])]
    return Graph(peers=peers, steps=(_joined(edges, peers),), positions=_in_rows(places))


def torus(peers: int, rows: int | None = None) -> Graph:
    places = _numbered("torus", peers, rows)
    edges = [(places, np.roll(places, 1, axis)) for axis in (0, 1)]
    return Graph(peers=peers, steps=(_joined(edges, peers),), positions=_in_rows(places))


def hypercube(peers: int) -> Graph:
    dimensions = peers.bit_length() - 1
    if peers != 2**dimensions:
        remedy = (
            f"use {2**dimensions} or {2 ** (dimensions + 1)} peers, or exponential, which supports any number"
        )
        raise ConfigurationError("peers", "of a hypercube must be a power of two", peers, remedy)
    places = np.arange(peers)
    edges = [(places, places ^ (1 << bit)) for bit in range(dimensions)]
    return Graph(peers=peers, steps=(_joined(edges, peers),), positions=_shadow(dimensions))


def _numbered(name: str, peers: int, rows: int | None) -> Ints:
    """Return the peer numbers, in rows and columns."""
    if rows is not None and (rows < 1 or peers % rows):
        remedy = "omit it for a nearly square shape"
        raise ConfigurationError(f"{name}:rows", f"must divide the peers, {peers}, evenly", rows, remedy)
    squarest = max(divisor for divisor in range(1, math.isqrt(peers) + 1) if peers % divisor == 0)
    if rows is None and squarest == 1 and peers > 3:
        alone = {"grid": "a path", "torus": "a ring"}[name]
        remedy = f"use {peers - 1} or {peers + 1} peers, or rows=1 for {alone}"
        raise ConfigurationError("peers", f"of a {name} must not be a prime above 3", peers, remedy)
    return np.arange(peers).reshape(squarest if rows is None else rows, -1)


def _joined(pairs: list[tuple[Ints, Ints]], peers: int) -> Ints:
    empty = np.zeros(0, np.int64)
    ends = np.concatenate([empty, *(one.ravel() for one, _ in pairs)])
    other_ends = np.concatenate([empty, *(other.ravel() for _, other in pairs)])
    return undirected_edges(ends, other_ends, peers)


def _in_rows(places: Ints) -> Floats:
    rows, columns = np.divmod(np.arange(places.size), places.shape[1])
    return np.stack([columns, rows], axis=1).astype(np.float64)


def _shadow(dimensions: int) -> Floats:
    """Project a cube on the plane: squares at the corners of larger squares, tilted so that no edges overlap."""
    bit = np.arange(dimensions)
    angles = np.pi / 2 * (bit % 2) + np.pi / 8 * (bit // 2)
    directions = 2.2 ** (bit // 2)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    shadow: Floats = ((np.arange(2**dimensions)[:, None] >> bit) & 1) @ directions
    return shadow
