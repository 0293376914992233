"""The table of named topologies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from paceline.schedules.topologies import circulant, lattice, random_graphs, star
from paceline.schedules.topologies.graph import Graph


@dataclass(frozen=True, slots=True)
class Family:
    """A named topology for any supported number of peers."""

    build: Callable[..., Graph]
    """(peers, parameter=…) -> Graph"""
    parameters: Mapping[str, type] = field(default_factory=dict)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "ring": Family(circulant.ring),
        "complete": Family(circulant.complete),
        "star": Family(star.star),
        "path": Family(lattice.path),
        "grid": Family(lattice.grid, {"rows": int}),
        "torus": Family(lattice.torus, {"rows": int}),
        "hypercube": Family(lattice.hypercube),
        "exponential": Family(circulant.exponential),
        "one-peer-exponential": Family(circulant.one_peer_exponential),
        "random-regular": Family(random_graphs.random_regular, {"degree": int, "seed": int}),
        "erdos-renyi": Family(random_graphs.erdos_renyi, {"p": float, "seed": int}),
    }
)
