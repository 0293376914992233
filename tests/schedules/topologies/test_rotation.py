import numpy as np
import pytest

from paceline.schedules.topologies import build_topology
from paceline.schedules.topologies.rotation import weights_by_distance


@pytest.mark.parametrize("words", ["ring", "complete", "exponential", "one-peer-exponential"])
@pytest.mark.parametrize("peers", [1, 2, 5, 16])
def test_circulant_matrices_are_known_by_the_weights_of_their_first_row(words, peers):
    topology = build_topology(words, peers)
    found = weights_by_distance(topology)
    for step, weights in enumerate(found):
        for rank in range(peers):
            assert topology.matrix(step)[rank].tolist() == [
                weights[(rank - peer) % peers] for peer in range(peers)
            ]


@pytest.mark.parametrize("words", ["path", "star", "grid", "hypercube", "random-regular"])
def test_other_graphs_are_not_taken_for_circulant(words):
    assert weights_by_distance(build_topology(words, 16)) is None


def test_alike_edges_with_unlike_weights_are_not_taken_for_circulant():
    weights = np.array([[0.6, 0.1, 0.3], [0.1, 0.7, 0.2], [0.3, 0.2, 0.5]])
    assert weights_by_distance(build_topology(weights)) is None
