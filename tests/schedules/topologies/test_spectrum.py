import math

import networkx
import numpy as np
import pytest
from refusals import has, refused

from paceline.schedules.topologies import build_topology, spectral_gap, spectrum, steps_to_consensus


def gap(words, peers, **options):
    return spectral_gap(build_topology(words, peers, **options))


# Published gaps


@pytest.mark.parametrize("peers", [4, 5, 6, 7, 8, 16, 33, 100, 1000, 1025, 10_000])
def test_gap_of_a_ring(peers):
    assert gap("ring", peers) == pytest.approx(4 / 3 * math.sin(math.pi / peers) ** 2, rel=1e-6)


@pytest.mark.parametrize("side", [4, 5, 6, 7, 10, 31, 33, 40])
def test_gap_of_a_square_torus(side):
    assert gap("torus", side**2) == pytest.approx(4 / 5 * math.sin(math.pi / side) ** 2, rel=1e-9)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5, 8, 10, 11, 12])
def test_gap_of_a_hypercube(dimensions):
    assert gap("hypercube", 2**dimensions) == pytest.approx(2 / (dimensions + 1), rel=1e-9)


@pytest.mark.parametrize("peers", [1, 2, 3, 8, 17, 1030])
def test_gap_of_a_complete_graph(peers):
    assert gap("complete", peers) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("peers", [2, 3, 4, 9, 50, 1000, 1030, 5000])
def test_gap_of_a_star(peers):
    # Of two peers a star is a pair, which averages at once.
    assert gap("star", peers) == pytest.approx(1 / peers if peers > 2 else 1, rel=1e-9)


@pytest.mark.parametrize("peers", [3, 8, 50, 1025, 2000])
def test_gap_of_a_path(peers):
    assert gap("path", peers) == pytest.approx(2 / 3 * (1 - math.cos(math.pi / peers)), rel=1e-6)


@pytest.mark.parametrize("peers", [2, 4, 6, 10, 12, 100, 1000, 1024, 10_000])
def test_gap_of_an_exponential_graph_with_an_even_number_of_peers(peers):
    assert gap("exponential", peers) == pytest.approx(2 / (1 + math.ceil(math.log2(peers))))


@pytest.mark.parametrize("peers", [3, 5, 9, 31])
def test_gap_of_an_exponential_graph_with_an_odd_number_of_peers_is_wider(peers):
    assert gap("exponential", peers) > 2 / (1 + math.ceil(math.log2(peers)))


@pytest.mark.parametrize("peers", [2, 4, 64, 1024, 8192])
def test_gap_of_one_peer_exponential_is_1_for_powers_of_two(peers):
    assert gap("one-peer-exponential", peers) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("peers", [3, 6, 100, 10_000])
def test_gap_of_one_peer_exponential_is_less_than_1_for_other_numbers(peers):
    assert 0.5 < gap("one-peer-exponential", peers) < 1


def test_the_gap_of_pieces_is_0():
    graph = networkx.disjoint_union(networkx.complete_graph(600), networkx.complete_graph(600))
    assert spectral_gap(build_topology(graph, allow_disconnected=True)) == 0


# The three ways to find it


@pytest.mark.parametrize("words", ["ring", "complete", "exponential", "one-peer-exponential"])
@pytest.mark.parametrize("peers", [2, 3, 16, 60])
def test_the_transform_and_the_dense_matrix_agree(words, peers):
    topology = build_topology(words, peers)
    assert spectral_gap(topology) == pytest.approx(1 - spectrum._dense(topology), abs=1e-12)


@pytest.mark.parametrize(
    "words",
    ["path", "grid", "star", "erdos-renyi", "random-regular", "ring", "exponential", "one-peer-exponential"],
)
def test_the_iteration_and_the_dense_matrix_agree(words):
    topology = build_topology(words, 300, seed=1)
    assert spectrum._by_iteration(topology) == pytest.approx(spectrum._dense(topology), abs=1e-9)


def test_the_iteration_bears_an_eigenvalue_far_from_the_others():
    # Rounding once made the largest eigenvalue of this one grow from iteration to iteration.
    topology = build_topology("exponential", 10_000)
    assert 1 - spectrum._by_iteration(topology) == pytest.approx(2 / 15, abs=1e-9)


def test_a_matrix_that_is_not_normal_counts_by_its_singular_values():
    rng = np.random.default_rng(0)
    shuffles = [np.eye(6)[rng.permutation(6)] for _ in range(4)]
    matrix = 0.2 * (np.eye(6) + sum(shuffles))
    assert not np.allclose(matrix @ matrix.T, matrix.T @ matrix)
    singular = np.linalg.svd(matrix, compute_uv=False)
    assert spectral_gap(build_topology(matrix)) == pytest.approx(1 - singular[1])


# Guarantees


@pytest.mark.parametrize(
    "words", ["ring", "torus", "star", "path", "exponential", "random-regular", "hypercube"]
)
def test_the_distance_from_consensus_never_shrinks_slower(words):
    topology = build_topology(words, 16)
    rho = 1 - spectral_gap(topology)
    values = np.random.default_rng(0).standard_normal((16, 5))
    for step in range(30):
        mixed = topology.mix(values, step)
        assert (
            np.linalg.norm(mixed - mixed.mean(axis=0))
            <= rho * np.linalg.norm(values - values.mean(axis=0)) + 1e-12
        )
        values = mixed


@pytest.mark.parametrize("words", ["ring", "star", "grid", "erdos-renyi:p=0.4"])
def test_the_distance_from_consensus_shrinks_at_that_rate_in_the_end(words):
    topology = build_topology(words, 16)
    values = np.random.default_rng(0).standard_normal(16)
    values -= values.mean()
    for _ in range(200):
        values = topology.mix(values)
        values -= values.mean()  # what rounding leaves of it would not shrink
        values /= np.linalg.norm(values)
    assert np.linalg.norm(topology.mix(values)) == pytest.approx(1 - spectral_gap(topology), rel=1e-6)


@pytest.mark.parametrize("words", ["ring", "torus", "star", "exponential", "one-peer-exponential"])
@pytest.mark.parametrize("peers", [12, 16])
def test_the_predicted_steps_are_enough_for_every_start(words, peers):
    topology = build_topology(words, peers)
    steps = steps_to_consensus(spectral_gap(topology), period=topology.period)
    product = np.eye(peers)
    for step in range(int(steps)):
        product = topology.matrix(step) @ product
    assert np.linalg.norm(product - 1 / peers, 2) <= 1e-3


def test_steps_to_consensus():
    assert steps_to_consensus(0.5) == 10  # 2^-10 < 1/1000 < 2^-9
    assert steps_to_consensus(0.5, factor=1e-6) == 20
    assert steps_to_consensus(1.0) == 1
    assert steps_to_consensus(1.0, period=4) == 4
    assert steps_to_consensus(0.0) == math.inf


@pytest.mark.parametrize(
    ("gap", "factor", "argument"),
    [(-0.1, 0.1, "gap"), (1.1, 0.1, "gap"), (math.nan, 0.1, "gap"), (0.5, 0, "factor"), (0.5, 1, "factor")],
)
def test_gaps_and_factors_out_of_bounds_are_refused(gap, factor, argument):
    with refused(argument, bound=has(0, 1)):
        steps_to_consensus(gap, factor)
