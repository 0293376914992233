import networkx
import pytest
from refusals import has, refused

from paceline.schedules.topologies import build_topology


def edges(topology):
    return {frozenset(edge) for edge in topology.edges().tolist()}


def numbered(graph):
    ordered = sorted(graph.nodes)
    return {frozenset((ordered.index(one), ordered.index(other))) for one, other in graph.edges}


@pytest.mark.parametrize(
    ("peers", "rows", "columns"), [(16, 4, 4), (12, 3, 4), (20, 4, 5), (6, 2, 3), (3, 1, 3)]
)
def test_grid_and_torus_are_those_of_networkx_in_the_shape_nearest_to_a_square(peers, rows, columns):
    for name, periodic in (("grid", False), ("torus", True)):
        expected = networkx.grid_2d_graph(rows, columns, periodic=periodic)
        expected.remove_edges_from(list(networkx.selfloop_edges(expected)))
        assert edges(build_topology(name, peers)) == numbered(expected)


def test_rows_shape_a_torus():
    assert edges(build_topology("torus:rows=2", 12)) == numbered(networkx.grid_2d_graph(2, 6, periodic=True))
    assert edges(build_topology("torus:rows=1", 7)) == edges(build_topology("ring", 7))


def test_a_path_is_a_ring_that_is_cut():
    cut = edges(build_topology("ring", 7)) - edges(build_topology("path", 7))
    assert cut == {frozenset((0, 6))}


@pytest.mark.parametrize("dimensions", range(6))
def test_corners_of_a_hypercube_differ_in_one_bit(dimensions):
    topology = build_topology("hypercube", 2**dimensions)
    assert len(edges(topology)) == dimensions * 2**dimensions // 2
    assert all((one ^ other).bit_count() == 1 for one, other in edges(topology))


@pytest.mark.parametrize(
    ("words", "peers", "refusal"),
    [
        ("hypercube", 12, refused("peers", 12, remedy=has(8, 16))),
        ("torus", 7, refused("peers", 7, bound=has(3), remedy=has(6, 8, "rows=1"))),
        ("grid", 13, refused("peers", 13, remedy=has("rows=1"))),
        ("torus:rows=3", 16, refused("torus:rows", 3, bound=has(16))),
        ("grid:rows=0", 16, refused("grid:rows", 0)),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_the_remedy(words, peers, refusal):
    with refusal:
        build_topology(words, peers)
