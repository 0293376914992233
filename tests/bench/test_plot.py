import pytest
from pictures import SVG, marks, points_of, read, texts

import paceline as pl
from paceline.bench.plot import draw
from paceline.bench.predict import predict
from paceline.bench.spec import Spec
from paceline.errors import RunError
from paceline.show import svg


def drawn(link=None, **changes):
    link = link or pl.Link("1Gbps", "50us")
    spec = Spec(pattern="all-reduce", workers=8, simulated=True, **changes)
    return read(draw(predict(spec, pl.Simulated(workers=8, link=link))))


def groups(root):
    return {group.find(f"{SVG}title").text: group for group in root.iter(f"{SVG}g")}


def test_there_is_a_line_and_a_key_for_each_algorithm():
    root = drawn(algorithms=("ring", "tree", "halving-doubling"))
    assert set(groups(root)) == {"ring", "tree", "halving-doubling"}
    assert {"ring", "tree", "halving-doubling", "4 KiB", "64 MiB"} <= set(texts(root))


def test_lines_differ_without_their_colours():
    styles = set()
    for group in groups(drawn()).values():
        line, marker, *_ = group.findall(f"{SVG}path")
        styles.add((line.get("stroke-dasharray"), marker.get("d"), marker.get("fill") == svg.PAPER))
    assert len(styles) == len(groups(drawn()))


def test_more_bandwidth_is_higher_and_larger_sizes_are_further_right():
    places = points_of(groups(drawn(algorithms=("ring",)))["ring"].find(f"{SVG}path"))
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)


def test_everything_lies_on_the_paper():
    root = drawn()
    _, _, width, height = map(float, root.get("viewBox").split())
    for text in marks(root, "text"):
        assert 0 < float(text.get("x")) < width
        assert 0 < float(text.get("y")) < height


@pytest.mark.parametrize("end_bytes", [4096, 5000])
def test_one_size_alone_can_be_drawn(end_bytes):
    assert groups(drawn(end_bytes=end_bytes))


def test_links_that_cost_nothing_leave_nothing_to_plot():
    with pytest.raises(RunError):
        drawn(link=pl.Link.ideal())
