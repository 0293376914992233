"""Topologies of decentralized SGD, as pure data: the neighbours of each peer and their averaging weights.

`build_topology(words, peers)` builds one from a name ("ring", "random-regular:degree=4"), a file, a networkx graph or a
weight matrix. The weights must be doubly stochastic, so that mixing preserves the mean of the peers, and must lead to
consensus. Other topologies are rejected.

Sources: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017 (D-PSGD); Xiao and
Boyd, "Fast linear iterations for distributed averaging", 2004 (weights and spectra).
"""

from __future__ import annotations

from paceline.schedules.topologies.build import build_topology
from paceline.schedules.topologies.facts import Facts, facts_of
from paceline.schedules.topologies.families import FAMILIES
from paceline.schedules.topologies.reach import diameter
from paceline.schedules.topologies.spectrum import spectral_gap, steps_to_consensus
from paceline.schedules.topologies.topology import Topology

__all__ = [
    "FAMILIES",
    "Facts",
    "Topology",
    "build_topology",
    "diameter",
    "facts_of",
    "spectral_gap",
    "steps_to_consensus",
]
