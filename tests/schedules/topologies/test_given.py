import networkx
import numpy as np
import pytest
from refusals import has, refused

from paceline.schedules.topologies import build_topology


@pytest.fixture
def edge_file(tmp_path):
    def write(text):
        path = tmp_path / "edges.txt"
        path.write_text(text)
        return path

    return write


def edges(topology):
    return {frozenset(edge) for edge in topology.edges().tolist()}


def test_a_file_of_edges_is_the_graph_that_networkx_reads(tmp_path):
    path = tmp_path / "edges.txt"
    graph = networkx.connected_watts_strogatz_graph(12, 4, 0.3, seed=1)
    networkx.write_edgelist(graph, path)
    read = build_topology(str(path), 12)
    assert edges(read) == {frozenset(edge) for edge in graph.edges}
    assert read.matrix() == pytest.approx(build_topology(graph, 12).matrix())


def test_comments_blank_lines_and_repeated_edges_change_nothing(edge_file):
    topology = build_topology(edge_file("# a triangle\n0 1\n\n1 2 0.7  # heavy\n2 0\n0 2\n1 0\n"), 3)
    assert edges(topology) == edges(build_topology("ring", 3))


def test_an_edge_of_a_peer_to_itself_names_the_peer_and_joins_nothing(edge_file):
    topology = build_topology(edge_file("0 1\n2 2\n"), 3, allow_disconnected=True)
    assert topology.neighbours(2) == ()
    assert topology.row(2) == ((2, 1.0),)


def test_a_file_knows_its_own_number_of_peers(edge_file):
    assert build_topology(edge_file("0 1\n1 2\n")).peers == 3


def test_a_file_is_read_again_when_it_changes(edge_file):
    path = edge_file("0 1\n1 2\n")
    before = build_topology(path, 3)
    assert build_topology(path, 3) is before
    edge_file("0 1\n1 2\n2 0\n")
    assert len(build_topology(path, 3).edges()) == 6


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("0 1\n1 4\n", refused(has("edges.txt", "line 2"), 4, bound=has(0, 3))),
        ("0 -1\n", refused(has("line 1"), -1, bound=has(0, 3))),
        ("0 1\n\n2\n", refused(has("line 3"), "2")),
        ("a b\n", refused(has("line 1"), "a b")),
        ("0.5 1\n", refused(has("line 1"), "0.5 1")),
        ("# nothing\n", refused(has("edges.txt"), "none")),
        ("0 1\n1 2\n", refused("topology", 3, bound=has(4), remedy=has(3))),
        ("0 1\n2 3\n", refused("topology", has(2))),
    ],
)
def test_wrong_files_are_refused_with_line_and_value(edge_file, text, refusal):
    with refusal:
        build_topology(edge_file(text), 4)


@pytest.mark.parametrize("name", ["missing.txt", "no/such/file"])
def test_a_file_that_is_not_there_is_refused(name):
    with refused("topology", name, remedy=has("No such file")):
        build_topology(name, 4)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "edges.bin"
    path.write_bytes(b"\xff\xfe\x00")
    with refused("topology", str(path)):
        build_topology(path, 4)


@pytest.mark.parametrize("peers", [9, 11])
def test_a_graph_with_fewer_or_more_nodes_than_peers_is_refused(peers):
    with refused("topology", 10, bound=has(peers)):
        build_topology(networkx.petersen_graph(), peers)


def test_whole_numbers_must_be_peers_and_other_names_are_numbered_in_order():
    with refused("topology", 3, bound=has(0, 2)):
        build_topology(networkx.path_graph([1, 2, 3]))
    named = build_topology(networkx.path_graph(["a", "c", "b"]))
    assert named.neighbours(1) == (0, 2)


def test_a_directed_edge_sends_from_its_first_node():
    topology = build_topology(networkx.DiGraph([(0, 1), (1, 2), (2, 0)]))
    assert topology.directed
    assert topology.sends_to(0) == (1,)
    assert topology.neighbours(0) == (2,)


def test_numbers_of_numpy_are_numbers_too():
    assert build_topology(networkx.path_graph(np.array([2, 0, 1]))).neighbours(0) == (1, 2)


def test_parallel_edges_count_once():
    assert len(build_topology(networkx.MultiGraph([(0, 1), (0, 1), (1, 2)])).edges()) == 4
