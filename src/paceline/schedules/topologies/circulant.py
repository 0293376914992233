"""Graphs that are the same from every peer: each receives from the peers at the same distances around a circle.

ring                  the two adjacent peers; gap (4/3) sin^2(pi/n), n >= 4
complete              all other peers; gap 1: one step averages exactly, as an all-reduce does
exponential           the peers at distances 1, 2, 4, … before it (directed), degree ceil(lg n); gap 2/(1 + ceil(lg
n)) if n is even
one-peer-exponential  one of these distances per step, in turn; lg n steps average exactly if n is a power of two,
and nearly for
                      any other n

Sources: Assran, Loizou, Ballas, Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", 2019; Ying, Yuan,
Chen, Hu, Pan, Yin, "Exponential Graph is Provably Efficient for Decentralized Deep Training", 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.schedules.topologies.graph import Floats, Graph, Ints, check_size, directed_edges


def ring(peers: int) -> Graph:
    return Graph(peers=peers, steps=(_edges(peers, (1, -1)),), positions=circle(peers))


def complete(peers: int) -> Graph:
    return Graph(peers=peers, steps=(_edges(peers, range(1, peers)),), positions=circle(peers))


def exponential(peers: int) -> Graph:
    return Graph(peers=peers, steps=(_edges(peers, _powers_of_two(peers)),), positions=circle(peers))


def one_peer_exponential(peers: int) -> Graph:
    steps = tuple(_edges(peers, (distance,)) for distance in _powers_of_two(peers))
    return Graph(peers=peers, steps=steps or (_edges(peers, ()),), positions=circle(peers))


def circle(peers: int) -> Floats:
    """Return positions around a circle, clockwise from the top."""
    angles = 2 * np.pi * np.arange(peers) / peers
    return np.stack([np.sin(angles), -np.cos(angles)], axis=1)


def _powers_of_two(peers: int) -> list[int]:
    """Return 1, 2, 4, … below the number of peers: ceil(lg n) numbers."""
    return [2**power for power in range((peers - 1).bit_length())]


def _edges(peers: int, distances: Sequence[int]) -> Ints:
    check_size(peers, peers * len(distances))
    receivers = np.repeat(np.arange(peers), len(distances))
    senders = receivers - np.tile(np.asarray(distances, np.int64), peers)
    return directed_edges(receivers, senders % peers, peers)
