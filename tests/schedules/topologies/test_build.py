from pathlib import Path

import networkx
import pytest
from refusals import has, refused

from paceline.schedules.topologies import FAMILIES, build_topology


@pytest.mark.parametrize("name", FAMILIES)
def test_every_name_has_a_topology_of_16_peers(name):
    topology = build_topology(name, 16)
    assert (topology.name, topology.peers) == (name, 16)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"random-regular"}))
def test_every_family_but_random_regular_begins_with_one_peer(name):
    assert build_topology(name, 1).row(0) == ((0, 1.0),)


def test_the_same_words_give_the_same_object():
    assert build_topology("torus", 16) is build_topology("torus", 16)
    assert build_topology("torus", 16) is not build_topology("torus", 20)
    assert build_topology("ring", 5) is not build_topology("ring", 5, weights="uniform")


def test_a_topology_is_returned_as_it_is():
    topology = build_topology("ring", 5)
    assert build_topology(topology, 5) is topology
    assert build_topology(topology) is topology
    with refused("topology", 5, bound=has(6)):
        build_topology(topology, 6)


@pytest.mark.parametrize("peers", [0, -1, 2.5, "4", True])
def test_peers_must_be_a_whole_number_of_at_least_1(peers):
    with refused("peers", peers, bound=has(1)):
        build_topology("ring", peers)


def test_a_name_alone_has_no_number_of_peers():
    with refused("peers", None):
        build_topology("ring")


def test_what_has_weights_of_its_own_takes_no_others():
    for own in ([[1.0]], build_topology("ring", 4)):
        with refused("weights", "uniform"):
            build_topology(own, weights="uniform")


def test_names_win_over_files_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ring").write_text("0 1\n")
    Path("mine").write_text("0 1\n1 2\n")
    assert build_topology("ring", 3).neighbours(0) == (1, 2)
    assert build_topology("mine", 3).neighbours(0) == (1,)


def test_a_graph_of_networkx_becomes_a_topology():
    topology = build_topology(networkx.petersen_graph(), 10)
    assert topology.name == "graph"
    assert {len(topology.neighbours(rank)) for rank in range(10)} == {3}
