import networkx
import numpy as np
import pytest

from paceline.schedules.topologies import FAMILIES, build_topology
from paceline.schedules.topologies.layout import lay_out


@pytest.mark.parametrize("name", FAMILIES)
def test_all_peers_stand_in_the_box_and_apart(name):
    layout = lay_out(build_topology(name, 16), 600)
    assert (layout.places >= -1e-9).all()
    assert (layout.places <= [600 + 1e-9, layout.height + 1e-9]).all()
    assert layout.spacing > 2 * layout.radius


def test_lines_on_a_torus_bend_around_the_peers_between():
    torus = build_topology("torus", 16)
    layout = lay_out(torus, 600)
    lines = list(layout.lines(torus.edges()))
    straight = [line for line in lines if np.allclose(line.bend, (line.start + line.end) / 2)]
    assert len(lines) == 32
    assert len(straight) == 24  # the other 8 join opposite sides


def test_a_pair_of_peers_has_one_line_both_ways():
    ring = build_topology("ring", 5)
    lines = list(lay_out(ring, 600).lines(ring.edges()))
    assert len(lines) == 5
    assert all(line.both_ways for line in lines)


def test_one_way_lines_run_from_sender_to_receiver():
    topology = build_topology(networkx.DiGraph([(0, 1), (1, 2), (2, 0)]))
    layout = lay_out(topology, 600)
    runs = {
        tuple(int(np.flatnonzero((layout.places == end).all(axis=1))[0]) for end in (line.start, line.end))
        for line in layout.lines(topology.edges())
    }
    assert runs == {(0, 1), (1, 2), (2, 0)}


def test_springs_find_the_same_places_each_time():
    topology = build_topology("random-regular", 20)
    assert (lay_out(topology, 600).places == lay_out(topology, 600).places).all()


def test_graphs_too_large_for_springs_go_around_a_circle():
    layout = lay_out(build_topology("random-regular", 600), 600)
    assert np.linalg.norm(layout.places - 300, axis=1) == pytest.approx(np.full(600, 300), rel=1e-3)
