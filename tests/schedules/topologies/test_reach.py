import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.schedules.topologies import build_topology, diameter


@pytest.mark.parametrize(
    ("words", "peers", "expected"),
    [
        ("ring", 1, 0),
        ("ring", 9, 4),
        ("ring", 10, 5),
        ("complete", 7, 1),
        ("star", 7, 2),
        ("path", 11, 10),
        ("grid", 20, 7),
        ("torus", 25, 4),
        ("hypercube", 32, 5),
        ("exponential", 16, 4),
        ("one-peer-exponential", 16, 4),
        ("ring", 3000, 1500),
        ("path", 3000, 2999),
    ],
)
def test_diameters_of_named_topologies(words, peers, expected):
    assert diameter(build_topology(words, peers)) == expected


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.floats(0.05, 0.6), st.integers(0, 1000))
def test_diameter_is_that_of_networkx(peers, p, seed):
    graph = networkx.gnp_random_graph(peers, p, seed)
    expected = networkx.diameter(graph) if networkx.is_connected(graph) else None
    assert diameter(build_topology(graph, allow_disconnected=True)) == expected


def test_a_tree_is_crossed_from_its_far_end():
    graph = networkx.random_labeled_tree(300, seed=3)
    assert diameter(build_topology(graph)) == networkx.diameter(graph)


def test_more_sources_than_fit_into_a_block():
    topology = build_topology("random-regular:degree=3", 4500)
    graph = networkx.Graph(topology.edges().tolist())
    farthest = max(networkx.eccentricity(graph, v=range(0, 4500, 250)).values())
    assert farthest <= diameter(topology) <= farthest + 3


def test_peers_that_never_hear_of_each_other_have_no_diameter():
    tree_and_ring = networkx.disjoint_union(networkx.path_graph(3), networkx.cycle_graph(4))
    pairs = networkx.Graph([(0, 1), (2, 3)])
    for graph in (tree_and_ring, pairs):
        assert diameter(build_topology(graph, allow_disconnected=True)) is None
