"""Weights for the edges of a graph.

metropolis  Metropolis-Hastings: 1/(1 + the larger of the two degrees), and the remainder for the peer itself. Doubly
            stochastic on any undirected graph, and each peer needs only its neighbours' degrees. On a directed graph
            every peer must send to as many peers as it receives from; the weight is 1/(1 + the largest degree of all).
uniform     1/(1 + degree) for itself and for each neighbour: doubly stochastic only if all degrees are equal.

With both kinds a peer's own value has a weight above 0, so that values cannot oscillate.
Source: Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from paceline.errors import ConfigurationError
from paceline.schedules.topologies.graph import Floats, Ints
from paceline.schedules.topologies.mixing import Mixing, mixing_of_entries

_TOLERANCE = 1e-7  # allows for rounding of the weights to float32


def metropolis(edges: Ints, peers: int) -> Mixing:
    received, sent = (np.bincount(edges[:, side], minlength=peers) for side in (0, 1))
    _check_balance(received, sent)
    if goes_both_ways(edges, peers):
        largest = received[edges].max(axis=1, initial=0)
    else:
        largest = np.full(len(edges), received.max(initial=0))
    return _completed(edges, 1.0 / (1 + largest), peers)


def uniform(edges: Ints, peers: int) -> Mixing:
    degrees = np.bincount(edges[:, 0], minlength=peers)
    mixing = _completed(edges, 1.0 / (1 + degrees[edges[:, 0]]), peers)
    check_sums(mixing, "use metropolis weights for a graph with different degrees")
    return mixing


WEIGHTS: Mapping[str, Callable[[Ints, int], Mixing]] = MappingProxyType(
    {"metropolis": metropolis, "uniform": uniform}
)


def check_sums(mixing: Mixing, remedy: str) -> None:
    """Raise an error if weights are not doubly stochastic: they would not preserve the mean of the peers."""
    for side, places in (("row", mixing.receivers), ("column", mixing.senders)):
        sums = np.bincount(places, mixing.weights, mixing.peers)
        wrong = np.flatnonzero(~(np.abs(sums - 1) <= _TOLERANCE))
        if len(wrong):
            bound = f"must be doubly stochastic: {side} {wrong[0]} must sum to 1"
            raise ConfigurationError("weights", bound, float(sums[wrong[0]]), remedy)


def goes_both_ways(edges: Ints, peers: int) -> bool:
    """Return whether each edge has its opposite. Edges must be sorted and without duplicates."""
    there, back = edges @ [peers, 1], edges @ [1, peers]
    return np.array_equal(there, np.sort(back))


def _completed(edges: Ints, weights: Floats, peers: int) -> Mixing:
    """Return the mixing matrix. The diagonal is chosen so that each row sums to 1."""
    own = 1 - np.bincount(edges[:, 0], weights, peers)
    everyone = np.arange(peers)
    receivers, senders = (np.concatenate([edges[:, side], everyone]) for side in (0, 1))
    return mixing_of_entries(peers, receivers, senders, np.concatenate([weights, own]))


def _check_balance(received: Ints, sent: Ints) -> None:
    uneven = np.flatnonzero(received != sent)
    if len(uneven):
        peer = uneven[0]
        raise ConfigurationError(
            "topology",
            "must be undirected, or each peer must send to as many peers as it receives from: its weights would not be "
            "doubly stochastic",
            f"peer {peer} that sends to {sent[peer]} and receives from {received[peer]}",
            "add edges, or give a doubly stochastic matrix; push-sum, for any directed graph, is not supported",
        )
