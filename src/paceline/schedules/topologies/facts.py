"""A topology in figures: what `paceline topology` prints."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.schedules.topologies.reach import diameter
from paceline.schedules.topologies.spectrum import spectral_gap, steps_to_consensus
from paceline.schedules.topologies.topology import Topology

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a topology costs a step, and how fast it mixes."""

    topology: str
    peers: int
    directed: bool
    period: int
    smallest_degree: int
    """Of all peers and steps: from how many a peer receives."""
    largest_degree: int
    diameter: int | None
    """Steps until everyone has heard of everyone; None: never."""
    spectral_gap: float
    """Of one period."""
    steps_to_consensus: int | None
    """Until the distance of the peers from their mean is a thousandth of what it was; None: never."""
    bytes_per_step_and_peer: int
    """Sent by the peer that sends most, in the step in which it does."""
    bytes_per_step: int
    """Sent by all peers together, in the step in which they send most."""

    @property
    def degree(self) -> str:
        """In words: "2", or "1 to 15" where peers differ."""
        least, most = self.smallest_degree, self.largest_degree
        return f"{most}" if least == most else f"{least} to {most}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def facts_of(topology: Topology, model_bytes: int) -> Facts:
    """The figures of a topology whose peers hold so many bytes of parameters and send them all each step."""
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
