"""Number of steps in which information from every peer reaches every other: the diameter, also if edges change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.schedules.topologies.graph import Ints
from paceline.schedules.topologies.mixing import Mixing
from paceline.schedules.topologies.rotation import weights_by_distance
from paceline.schedules.topologies.topology import Topology

Heard = npt.NDArray[np.uint64]
"""The sources that have reached each peer: a row of bits, one per source."""
Tellings = list[tuple[Ints, Ints]]
"""Receivers and senders of one step, in batches in which no peer receives twice."""

_BLOCK_WORDS = 64  # 64-bit words of sources per block; with ten thousand peers a block takes 5 MB


def diameter(topology: Topology) -> int | None:
    """Return the steps, from step 0, until the value of each peer has reached all others; None if it never does.

    For a static graph this is the longest of all shortest paths.
    """
    tellings = [_tellings(mixing) for mixing in topology.rows]
    if weights_by_distance(topology) is not None:  # all peers are equivalent
        return _steps_from(np.zeros(1, np.int64), topology.peers, tellings)
    if _is_tree(topology):
        return _steps_from(_farthest(topology.peers, tellings[0]), topology.peers, tellings)
    everyone, block = np.arange(topology.peers), 64 * _BLOCK_WORDS
    longest = 0
    for start in range(0, topology.peers, block):
        steps = _steps_from(everyone[start : start + block], topology.peers, tellings)
        if steps is None:
            return None
        longest = max(longest, steps)
    return longest


def _steps_from(sources: Ints, peers: int, tellings: list[Tellings]) -> int | None:
    """Return the steps until all `sources` have reached all peers; None if they never do."""
    heard = _at_first(sources, peers)
    all_of_them = np.bitwise_or.reduce(heard, axis=0)
    step, stood_still = 0, 0
    while not (heard == all_of_them).all():
        more = _told(heard, tellings[step % len(tellings)])
        stood_still = stood_still + 1 if np.array_equal(more, heard) else 0
        if stood_still == len(tellings):
            return None
        heard, step = more, step + 1
    return step


def _at_first(sources: Ints, peers: int) -> Heard:
    """Return the initial state: each source has reached only itself."""
    heard = np.zeros((peers, -(-len(sources) // 64)), np.uint64)
    word, bit = np.divmod(np.arange(len(sources)), 64)
    heard[sources, word] = np.uint64(1) << bit.astype(np.uint64)
    return heard


def _told(heard: Heard, tellings: Tellings) -> Heard:
    told = heard.copy()
    for receivers, senders in tellings:
        told[receivers] |= heard[senders]
    return told


def _tellings(mixing: Mixing) -> Tellings:
    """Return the first neighbour of every peer as one batch, the second as the next, …"""
    degrees = np.diff(mixing.offsets)
    batches = []
    for place in range(degrees.max()):
        receivers = np.flatnonzero(degrees > place)
        batches.append((receivers, mixing.senders[mixing.offsets[receivers] + place]))
    return batches


def _is_tree(topology: Topology) -> bool:
    return (
        not topology.directed and topology.period == 1 and len(topology.edges()) == 2 * (topology.peers - 1)
    )


def _farthest(peers: int, tellings: Tellings) -> Ints:
    """Return the last peer that peer 0 reaches: in a tree, an end of a longest path."""
    newest = np.zeros(1, np.int64)
    heard = _at_first(newest, peers)
    while True:
        more = _told(heard, tellings)
        changed = np.flatnonzero(more != heard)
        if not len(changed):
            return newest
        heard, newest = more, changed[:1]
