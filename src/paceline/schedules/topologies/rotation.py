"""Topologies that are the same from every peer: rotating the circle of peers by one changes nothing."""

from __future__ import annotations

import numpy as np

from paceline.schedules.topologies.graph import Floats
from paceline.schedules.topologies.mixing import Mixing
from paceline.schedules.topologies.topology import Topology


def weights_by_distance(topology: Topology) -> list[Floats] | None:
    """Return, for each step, the weight by distance from sender to receiver; None if peers differ."""
    found = [_by_distance(mixing) for mixing in topology.rows]
    alike = [weights for weights in found if weights is not None]
    return alike if len(alike) == len(found) else None


def _by_distance(mixing: Mixing) -> Floats | None:
    degrees = np.diff(mixing.offsets)
    if (degrees != degrees[0]).any():
        return None
    first = np.zeros(mixing.peers)
    first[-mixing.senders[: degrees[0]] % mixing.peers] = mixing.weights[: degrees[0]]
    same = first[(mixing.receivers - mixing.senders) % mixing.peers] == mixing.weights
    return first if same.all() else None
