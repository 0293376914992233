import networkx
import numpy as np
import pytest
from refusals import has, refused, unknown

from paceline.schedules.topologies import build_topology


def test_metropolis_weighs_an_edge_by_the_larger_degree():
    graph = networkx.barbell_graph(4, 2)
    topology = build_topology(graph)
    for one, other in graph.edges:
        assert topology.weight(one, other) == 1 / (1 + max(graph.degree[one], graph.degree[other]))


@pytest.mark.parametrize("words", ["ring", "complete", "torus", "hypercube", "exponential", "random-regular"])
def test_uniform_and_metropolis_agree_where_all_degrees_are_the_same(words):
    uniform = build_topology(words, 16, weights="uniform")
    assert uniform.matrix() == pytest.approx(build_topology(words, 16).matrix())
    degree = len(uniform.neighbours(0))
    assert uniform.weight(0, 0) == pytest.approx(1 / (degree + 1))


@pytest.mark.parametrize("words", ["star", "path", "grid"])
def test_uniform_weights_are_refused_where_degrees_differ(words):
    with refused("weights", bound=has(0, 1), remedy=has("metropolis")):
        build_topology(words, 9, weights="uniform")


def test_a_directed_graph_with_even_traffic_has_the_weights_of_its_largest_degree():
    graph = networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 3), (3, 0)])
    matrix = build_topology(graph).matrix()
    assert matrix[1, 0] == matrix[0, 3] == 1 / 3
    assert matrix.sum(axis=0) == pytest.approx(np.ones(4))
    assert matrix.sum(axis=1) == pytest.approx(np.ones(4))


@pytest.mark.parametrize("weights", ["metropolis", "uniform"])
def test_a_directed_graph_with_uneven_traffic_is_refused_for_want_of_push_sum(weights):
    graph = networkx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    refusal = {
        "metropolis": refused("topology", has(0, 2, 1), remedy=has("push-sum")),
        "uniform": refused("weights", pytest.approx(4 / 3), bound=has(0, 1)),
    }[weights]
    with refusal:
        build_topology(graph, weights=weights)


def test_unknown_weights_are_refused():
    with unknown("weights", "unifrom", nearest="uniform"):
        build_topology("ring", 4, weights="unifrom")
