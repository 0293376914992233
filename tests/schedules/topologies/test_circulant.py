import numpy as np
import pytest
from refusals import has, refused

from paceline.schedules.topologies import build_topology


def test_ring_neighbours_are_next_to_each_other():
    ring = build_topology("ring", 6)
    assert ring.neighbours(0) == (1, 5)
    assert ring.row(2) == ((1, 1 / 3), (2, pytest.approx(1 / 3)), (3, 1 / 3))
    assert not ring.directed


@pytest.mark.parametrize(("peers", "neighbours"), [(1, ()), (2, (1,)), (3, (1, 2))])
def test_small_rings_join_each_pair_once(peers, neighbours):
    assert build_topology("ring", peers).neighbours(0) == neighbours


def test_in_a_complete_graph_all_weights_are_the_same():
    assert build_topology("complete", 5).matrix() == pytest.approx(np.full((5, 5), 0.2))


@pytest.mark.parametrize(("peers", "distances"), [(8, (1, 2, 4)), (6, (1, 2, 4)), (5, (1, 2, 4)), (2, (1,))])
def test_exponential_peers_receive_from_powers_of_two_before_them(peers, distances):
    topology = build_topology("exponential", peers)
    for rank in range(peers):
        expected = sorted((rank - distance) % peers for distance in distances)
        assert list(topology.neighbours(rank)) == expected
        assert list(topology.sends_to(rank)) == sorted((rank + distance) % peers for distance in distances)
    assert topology.directed == (peers > 2)


@pytest.mark.parametrize("peers", [2, 5, 8, 12])
def test_one_peer_exponential_halves_with_one_peer_a_step(peers):
    topology = build_topology("one-peer-exponential", peers)
    assert topology.period == (peers - 1).bit_length()
    for step in range(2 * topology.period):
        sender = (3 % peers - 2 ** (step % topology.period)) % peers
        assert dict(topology.row(3 % peers, step)) == {sender: 0.5, 3 % peers: 0.5}


@pytest.mark.parametrize("power", range(1, 8))
def test_one_peer_exponential_averages_exactly_after_lg_n_steps(power):
    topology = build_topology("one-peer-exponential", 2**power)
    values = np.random.default_rng(0).standard_normal(2**power)
    mixed = values
    for step in range(power):
        assert not np.allclose(mixed, values.mean())
        mixed = topology.mix(mixed, step)
    assert mixed == pytest.approx(np.full(2**power, values.mean()), abs=1e-14)


def test_a_graph_that_would_fill_the_memory_is_refused():
    with refused("topology", has("10,000", "99,990,000"), bound=has("10,000,000")):
        build_topology("complete", 10_000)
