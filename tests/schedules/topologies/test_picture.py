import pytest
from pictures import SVG, marks, paths_of, read, texts
from refusals import has, refused

from paceline.schedules.topologies import FAMILIES, build_topology, facts_of
from paceline.schedules.topologies.picture import draw


def drawn(words, peers):
    topology = build_topology(words, peers)
    return read(draw(topology, facts_of(topology, 1)))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_topology_has_a_disc_and_a_number_for_each_peer(name):
    root = drawn(name, 16)
    assert len(marks(root, "circle")) == 16
    assert {str(rank) for rank in range(16)} <= set(texts(root))


def test_the_heading_tells_the_figures():
    title, figures, *_ = texts(drawn("ring", 16))
    assert title == "ring, 16 peers"
    assert figures == "degree 2, spectral gap 0.05075, 133 steps until the distance is a thousandth"


def test_a_line_is_drawn_for_each_edge():
    [lines] = marks(drawn("ring", 16), "path")
    assert len(paths_of(lines)) == 16


def test_one_way_edges_have_arrows_and_others_none():
    assert len(marks(drawn("ring", 8), "path")) == 1
    lines, arrows = marks(drawn("exponential", 8), "path")
    assert len(paths_of(lines)) == 20  # 8 of distance 1, 8 of 2, and 4 of 4, which go both ways
    assert len(paths_of(arrows)) == 24


def test_each_step_of_a_period_has_its_own_line_and_key():
    root = drawn("one-peer-exponential", 8)
    assert {"step 0", "step 1", "step 2"} <= set(texts(root))
    lines = marks(root, "path", fill="none")
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
    with refused("plot", bound=has("2,000", "20,000")):
        drawn(words, peers)
