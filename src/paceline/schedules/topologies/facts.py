"""Key figures of a topology, as printed by `paceline topology`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.schedules.topologies.reach import diameter
from paceline.schedules.topologies.spectrum import spectral_gap, steps_to_consensus
from paceline.schedules.topologies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Cost per step of a topology, and how fast it mixes."""

    topology: str
    peers: int
    directed: bool
    period: int
    smallest_degree: int
    """Smallest number of peers that a peer receives from, over all peers and steps."""
    largest_degree: int
    diameter: int | None
    """Steps until every peer has received from every other, directly or indirectly; None if it never does."""
    spectral_gap: float
    """Spectral gap of one period."""
    steps_to_consensus: int | None
    """Steps until the distance from the mean has fallen by a factor of 1000; None if it never does."""
    bytes_per_step_and_peer: int
    """Largest number of bytes that one peer sends in one step."""
    bytes_per_step: int
    """Largest number of bytes that all peers together send in one step."""

    @property
    def degree(self) -> str:
        """Degree as text: "2", or "1 to 15" if peers differ."""
        least, most = self.smallest_degree, self.largest_degree
        return f"{most}" if least == most else f"{least} to {most}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def facts_of(topology: Topology, model_bytes: int) -> Facts:
    """Return the figures of a topology in which each peer sends `model_bytes` bytes of parameters along each edge."""
    edges = [topology.edges(step) for step in range(topology.period)]
    received, sent = (
        np.stack([np.bincount(some[:, side], minlength=topology.peers) for some in edges]) for side in (0, 1)
    )
    gap = spectral_gap(topology)
    steps = steps_to_consensus(gap, period=topology.period)
    return Facts(
        topology=topology.name,
        peers=topology.peers,
        directed=topology.directed,
        period=topology.period,
        smallest_degree=int(received.min()),
        largest_degree=int(received.max()),
        diameter=diameter(topology),
        spectral_gap=gap,
        steps_to_consensus=None if math.isinf(steps) else int(steps),
        bytes_per_step_and_peer=int(sent.max()) * model_bytes,
        bytes_per_step=int(sent.sum(axis=1).max()) * model_bytes,
    )
