import math
from xml.etree import ElementTree

from pictures import is_scale, marks, points_of, read, texts

from paceline.show import svg
from paceline.show.markup import INK, Line, bars, chart, items, table


def lines_of(picture):
    """The points of each line, by its colour. The axes have the colour of the page."""
    return {
        each.get("stroke"): points_of(each)
        for each in marks(read(picture), "path")
        if each.get("stroke") != INK
    }


def test_what_a_user_wrote_is_no_markup():
    hostile = "<script>alert(1)</script>"
    pieces = [
        table([hostile], [[hostile]]),
        items([hostile]),
        chart(hostile, [Line(hostile, [0.0], [1.0]), Line("b", [0.0], [1.0])], hostile),
        bars(hostile, [hostile], [[1.0]], [hostile]),
    ]
    assert all("<script>" not in piece and "&lt;script&gt;" in piece for piece in pieces)


def test_a_table_is_well_formed_and_aligns_numbers():
    root = ElementTree.fromstring(table(["name", "count"], [["a", "12"], ["b", "7"]]))
    assert [cell.text for cell in root.iter("th")] == ["name", "count"]
    assert [(cell.text, cell.get("style")) for cell in root.iter("td")][:2] == [
        ("a", "text-align: left"),
        ("12", "text-align: right"),
    ]
    assert "<thead>" not in table((), [["a", "1"]])
    assert "right" not in table((), [["a", "1"]])


def test_a_chart_has_a_line_each_and_its_extremes():
    lines = [Line("first", [1.0, 2.0], [4.0, 1.0]), Line("second", [1.0, 2.0], [2.0, 3.0])]
    picture = chart("loss", lines, "2 s")
    assert texts(read(picture)) == ["loss", "4", "1", "0", "2 s", "first", "second"]
    first, second = (lines_of(picture)[colour] for colour in svg.COLOURS[:2])
    assert is_scale([1.0, 2.0, 1.0, 2.0], [x for x, _ in first + second])
    assert is_scale([4.0, 1.0, 2.0, 3.0], [-y for _, y in first + second])


def test_one_line_needs_no_name():
    picture = chart("loss", [Line("loss", [1.0, 2.0], [4.0, 1.0])], "2 s")
    assert texts(read(picture)) == ["loss", "4", "1", "0", "2 s"]


def test_what_is_not_there_or_no_number_is_left_out():
    gaps = chart("loss", [Line("a", [1.0, 2.0, 3.0, 4.0], [4.0, None, math.nan, 1.0])], "4 s")
    assert lines_of(gaps) == lines_of(chart("loss", [Line("a", [1.0, 4.0], [4.0, 1.0])], "4 s"))
    assert chart("loss", [Line("a", [1.0, 2.0], [None, math.inf])], "4 s") == ""
    assert chart("loss", [], "4 s") == ""


def test_a_single_point_and_a_level_line_are_drawn():
    [(start, end)] = lines_of(chart("loss", [Line("a", [0.0], [2.0])], "0 s")).values()
    assert start == end
    [(start, end)] = lines_of(chart("loss", [Line("a", [0.0, 1.0], [2.0, 2.0])], "1 s")).values()
    assert start[1] == end[1]


def test_a_long_curve_is_thinned_to_means():
    count = 10_000
    line = Line("a", [float(n) for n in range(count)], [float(n % 2) for n in range(count)])
    points = line.points()
    assert len(points) <= 240
    assert points[-1][0] == count - 1
    assert all(abs(y - 0.5) < 0.02 for _, y in points)


def test_bars_are_as_wide_as_their_shares():
    picture = read(bars("time", ["rank 0", "rank 1"], [[0.25, 0.75], [1.0, 0.0]], ["compute", "idle"]))
    compute, idle = (
        [float(each.get("width")) for each in marks(picture, "rect", fill=c)] for c in svg.COLOURS[:2]
    )
    *compute, _ = compute  # the last is in the key
    *idle, _ = idle
    assert is_scale([0.0, 0.25, 1.0, 0.75], [0.0, *compute, *idle])
    assert texts(picture) == ["time", "rank 0", "rank 1", "compute", "idle"]


def test_words_have_the_colour_of_the_page():
    assert 'fill="currentColor"' in chart("loss", [Line("a", [1.0], [1.0])], "1 s")
