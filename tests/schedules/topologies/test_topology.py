"""Properties of topologies of every family."""

import pickle

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused

from paceline.schedules.topologies import FAMILIES, build_topology, spectral_gap


@st.composite
def topologies(draw):
    """Any name with any number of peers that it allows."""
    words, peers = draw(st.sampled_from(sorted(FAMILIES))), draw(st.integers(1, 33))
    if words == "hypercube":
        peers = 2 ** (peers % 6)
    elif words == "random-regular":
        peers += 5
    elif words in ("grid", "torus"):
        rows = draw(st.integers(1, 6))
        words, peers = f"{words}:rows={rows}", rows * (peers % 7 + 1)
    return build_topology(words, peers, seed=draw(st.integers(0, 5)), allow_disconnected=True)


@st.composite
def graphs(draw):
    peers = draw(st.integers(1, 12))
    pairs = [(one, other) for one in range(peers) for other in range(one)]
    graph = networkx.Graph()
    graph.add_nodes_from(range(peers))
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])
    return graph


@settings(deadline=None, max_examples=150)
@given(topologies())
def test_every_matrix_is_doubly_stochastic(topology):
    for step in range(topology.period):
        matrix = topology.matrix(step)
        assert (matrix >= 0).all()
        assert matrix.sum(axis=0) == pytest.approx(np.ones(topology.peers), abs=1e-12)
        assert matrix.sum(axis=1) == pytest.approx(np.ones(topology.peers), abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(topologies())
def test_rows_weights_neighbours_and_edges_tell_the_same_as_the_matrix(topology):
    for step in range(topology.period):
        matrix = topology.matrix(step)
        edges = set(map(tuple, topology.edges(step).tolist()))
        for rank in range(topology.peers):
            row = topology.row(rank, step)
            assert [peer for peer, _ in row] == sorted({peer for peer, _ in row} | {rank})
            assert sum(weight for _, weight in row) == pytest.approx(1)
            assert dict(row) == {peer: matrix[rank, peer] for peer, _ in row}
            support = [int(peer) for peer in np.flatnonzero(matrix[rank]) if peer != rank]
            assert list(topology.neighbours(rank, step)) == support
            assert {(rank, peer) for peer in support} == {edge for edge in edges if edge[0] == rank}
            assert [topology.weight(rank, peer, step) for peer in range(topology.peers)] == matrix[
                rank
            ].tolist()


@settings(deadline=None, max_examples=100)
@given(topologies())
def test_one_sends_to_those_that_receive_from_it(topology):
    for step in range(topology.period):
        received = {
            (rank, peer) for rank in range(topology.peers) for peer in topology.neighbours(rank, step)
        }
        sent = {(peer, rank) for rank in range(topology.peers) for peer in topology.sends_to(rank, step)}
        assert received == sent
        if not topology.directed:
            assert received == {(peer, rank) for rank, peer in received}


@settings(deadline=None, max_examples=50)
@given(topologies(), st.integers(0, 40))
def test_mixing_multiplies_by_the_matrix_and_keeps_the_mean(topology, step):
    values = np.random.default_rng(step).standard_normal((topology.peers, 3))
    mixed = topology.mix(values, step)
    assert mixed == pytest.approx(topology.matrix(step) @ values, abs=1e-12)
    assert mixed.mean(axis=0) == pytest.approx(values.mean(axis=0), abs=1e-12)
    assert topology.mix(values[:, 0], step) == pytest.approx(mixed[:, 0], abs=1e-15)


@settings(deadline=None, max_examples=50)
@given(topologies(), st.integers(0, 3))
def test_steps_repeat_with_the_period(topology, step):
    assert (topology.matrix(step) == topology.matrix(step + topology.period)).all()
    assert topology.row(0, step) == topology.row(0, step + 5 * topology.period)


@settings(deadline=None, max_examples=100)
@given(graphs())
def test_metropolis_weights_fit_any_undirected_graph(graph):
    topology = build_topology(graph, allow_disconnected=True)
    matrix = topology.matrix()
    assert (matrix == matrix.T).all()
    assert matrix.sum(axis=0) == pytest.approx(np.ones(len(graph)), abs=1e-12)
    assert {frozenset(edge) for edge in topology.edges().tolist()} == {
        frozenset(edge) for edge in graph.edges
    }
    assert (spectral_gap(topology) > 0) == networkx.is_connected(graph)


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_peer_that_there_is_not_is_refused(rank):
    topology = build_topology("ring", 4)
    for ask in (topology.row, topology.neighbours, topology.sends_to):
        with refused("peer", rank, bound=has(0, 3)):
            ask(rank)
    with refused("peer", rank, bound=has(0, 3)):
        topology.weight(0, rank)


def test_a_topology_travels_and_compares_by_value():
    topology = build_topology("torus", 12)
    copy = pickle.loads(pickle.dumps(topology))
    assert copy == topology
    assert hash(copy) == hash(topology)
    assert copy != build_topology("torus:rows=2", 12)
    assert topology != "torus"
    assert (str(topology), repr(topology)) == ("torus", "Topology('torus', peers=12)")


def test_its_data_cannot_be_written_to():
    mixing = build_topology("ring", 4).rows[0]
    for array in (mixing.offsets, mixing.senders, mixing.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
