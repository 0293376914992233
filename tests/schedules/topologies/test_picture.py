from xml.etree import ElementTree

import pytest

from paceline.errors import ConfigurationError
from paceline.schedules.topologies import FAMILIES, build_topology, facts_of
from paceline.schedules.topologies.picture import draw

SVG = "{http://www.w3.org/2000/svg}"


def drawn(words, peers):
    topology = build_topology(words, peers)
    return ElementTree.fromstring(draw(topology, facts_of(topology, 1)))


def texts(root):
    return [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_topology_has_a_disc_and_a_number_for_each_peer(name):
    root = drawn(name, 16)
    assert len(list(root.iter(f"{SVG}circle"))) == 16
    assert {str(rank) for rank in range(16)} <= set(texts(root))


def test_the_heading_tells_the_figures():
    title, figures, *_ = texts(drawn("ring", 16))
    assert title == "ring, 16 peers"
    assert figures == "degree 2, spectral gap 0.05075, 133 steps to a thousandth of the distance"


def test_a_line_is_drawn_for_each_edge():
    path = next(path for path in drawn("ring", 16).iter(f"{SVG}path"))
    assert path.get("d").count("M") == 16


def test_one_way_edges_have_arrows_and_others_none():
    assert len(list(drawn("ring", 8).iter(f"{SVG}path"))) == 1
    lines, arrows = drawn("exponential", 8).iter(f"{SVG}path")
    assert lines.get("d").count("M") == 20  # 8 of distance 1, 8 of 2, and 4 of 4, which go both ways
    assert arrows.get("d").count("M") == 24


def test_each_step_of_a_period_has_its_own_line_and_key():
    root = drawn("one-peer-exponential", 8)
    assert {"step 0", "step 1", "step 2"} <= set(texts(root))
    lines = [path for path in root.iter(f"{SVG}path") if path.get("fill") == "none"]
    assert len({(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}) == 3


@pytest.mark.parametrize(("words", "peers"), [("path", 16), ("ring", 1), ("torus", 36), ("complete", 40)])
def test_everything_lies_on_the_paper(words, peers):
    root = drawn(words, peers)
    _, _, width, height = map(float, root.get("viewBox").split())
    group = root.find(f"{SVG}g")
    left, top = map(float, group.get("transform").removeprefix("translate(").removesuffix(")").split())
    for disc in group.iter(f"{SVG}circle"):
        radius = float(disc.get("r"))
        assert radius <= left + float(disc.get("cx")) <= width - radius
        assert radius <= top + float(disc.get("cy")) <= height - radius


def test_many_peers_are_drawn_without_numbers():
    assert len(texts(drawn("ring", 500))) == 2


@pytest.mark.parametrize(("words", "peers"), [("ring", 2001), ("complete", 300)])
def test_what_would_be_a_blot_is_refused(words, peers):
    with pytest.raises(ConfigurationError, match="at most 2,000 peers and 20,000 edges"):
        drawn(words, peers)
