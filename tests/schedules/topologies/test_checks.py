import networkx
import numpy as np
import pytest
from refusals import has, refused

from paceline.schedules.topologies import build_topology, spectral_gap


def swapping_ring(peers):
    """Weights 1/2 for each side and none for oneself."""
    ring = np.zeros((peers, peers))
    for rank in range(peers):
        ring[rank, (rank + 1) % peers] = ring[rank, rank - 1] = 0.5
    return ring


def test_a_graph_in_pieces_is_refused_unless_allowed():
    graph = networkx.disjoint_union(networkx.cycle_graph(3), networkx.cycle_graph(4))
    with refused("topology", has(2, 4), remedy=has("allow_disconnected=True")):
        build_topology(graph)
    topology = build_topology(graph, allow_disconnected=True)
    values = np.array([0.0] * 3 + [1.0] * 4)
    for _ in range(100):
        values = topology.mix(values)
    assert values == pytest.approx([0] * 3 + [1] * 4)


@pytest.mark.parametrize("peers", [4, 6, 16])
def test_an_even_ring_without_own_weight_oscillates_and_is_refused(peers):
    with refused("weights", has(2), remedy=has("allow_disconnected=True")):
        build_topology(swapping_ring(peers))
    topology = build_topology(swapping_ring(peers), allow_disconnected=True)
    assert spectral_gap(topology) == 0
    values = np.tile([0.0, 1.0], peers // 2)
    assert (topology.mix(values) == 1 - values).all()


@pytest.mark.parametrize("peers", [3, 5, 7])
def test_an_odd_ring_without_own_weight_settles(peers):
    topology = build_topology(swapping_ring(peers))
    assert spectral_gap(topology) == pytest.approx(1 - np.cos(np.pi / peers))


def test_a_directed_ring_that_only_passes_on_is_refused():
    with refused("weights", has(5)):
        build_topology(np.roll(np.eye(5), 1, axis=1))


def test_one_own_share_stops_all_oscillation():
    matrix = swapping_ring(4)
    matrix[0, 0] = matrix[1, 1] = 0.25
    matrix[0, 1] = matrix[1, 0] = 0.25
    assert spectral_gap(build_topology(matrix)) > 0


def test_a_connected_graph_whose_weights_leave_edges_out_is_in_pieces():
    with refused("topology", has(4)):
        build_topology("ring", 4, weights=np.eye(4))


def test_long_paths_are_known_to_be_connected():
    assert build_topology("path", 5000).peers == 5000
