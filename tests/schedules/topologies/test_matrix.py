import networkx
import numpy as np
import pytest
from refusals import has, refused

from paceline.schedules.topologies import build_topology

LAZY_RING = np.array([[0.5, 0.25, 0, 0.25], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25], [0.25, 0, 0.25, 0.5]])


def test_a_matrix_is_taken_as_it_is():
    topology = build_topology(LAZY_RING, 4)
    assert (topology.matrix() == LAZY_RING).all()
    assert topology.neighbours(0) == (1, 3)
    assert topology.name == "matrix"


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_a_matrix_is_read_from_a_file(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    np.save(path, LAZY_RING) if suffix == ".npy" else np.savetxt(path, LAZY_RING, delimiter=",")
    assert (build_topology(path, 4).matrix() == LAZY_RING).all()
    assert (build_topology("ring", 4, weights=path).matrix() == LAZY_RING).all()
    assert (build_topology(networkx.cycle_graph(4), weights=str(path)).matrix() == LAZY_RING).all()


def test_weights_of_single_precision_are_near_enough():
    assert build_topology(np.full((3, 3), 1 / 3, np.float32)).peers == 3


def test_a_matrix_may_be_one_way():
    shifted = 0.5 * np.eye(5) + 0.5 * np.roll(np.eye(5), 1, axis=1)
    topology = build_topology(shifted)
    assert topology.directed
    assert topology.neighbours(0) == (1,)
    assert topology.sends_to(0) == (4,)


@pytest.mark.parametrize(
    ("matrix", "refusal"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], refused("weights", 1.1)),
        ([[0.5, 0.5], [0.6, 0.4]], refused("weights", 1.1, bound=has(0))),
        ([[1.5, -0.5], [-0.5, 1.5]], refused("weights", -0.5, bound=has(1))),
        ([[np.nan, 1], [1, 0]], refused("weights", has("nan"), bound=has(0))),
        (np.ones((2, 3)) / 3, refused("weights", "2 x 3")),
        (np.zeros((0, 0)), refused("weights", "0 x 0")),
        (1.0, refused("weights")),
        ([["a", "b"], ["c", "d"]], refused("weights")),
        (object(), refused("weights")),
    ],
)
def test_a_wrong_matrix_is_refused_with_row_and_sum(matrix, refusal):
    with refusal:
        build_topology(matrix)


@pytest.mark.parametrize(
    ("name", "content"), [("w.npy", "no array"), ("w.csv", "1,x\n"), ("w.csv", "1,2\n3\n")]
)
def test_files_that_hold_no_matrix_are_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with refused("weights"):
        build_topology(tmp_path / name)


def test_a_pickle_is_never_loaded(tmp_path):
    path = tmp_path / "w.npy"
    np.save(path, np.array([[object()]]), allow_pickle=True)
    with refused("weights", str(path), remedy=has("allow_pickle")):
        build_topology(path)


def test_weights_beside_the_edges_of_the_graph_are_refused():
    with refused("weights", 0.25, bound=has("row 0, column 3")):
        build_topology("path", 4, weights=LAZY_RING)


def test_a_matrix_for_another_number_of_peers_is_refused():
    with refused("topology", 4, bound=has(5)):
        build_topology(LAZY_RING, 5)
    with refused("weights", 4, bound=has(5)):
        build_topology("ring", 5, weights=LAZY_RING)


def test_a_matrix_does_not_suit_edges_that_change():
    with refused("weights"):
        build_topology("one-peer-exponential", 4, weights=LAZY_RING)
