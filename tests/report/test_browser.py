"""The page in a real browser: it is drawn, reacts to wheel, pointer and keys, and makes no requests."""

import math

import pytest
from report.cases import entry, handmade, history_of, trained

import paceline as pl
from paceline.analysis.comparison.entry import Entry
from paceline.analysis.diagnosis.blame import find_blame
from paceline.costs.units import format_bytes, format_seconds
from paceline.report import write_page
from paceline.trace import Kind

pytestmark = pytest.mark.xdist_group("browser")  # one Chromium for all

WIDE, NARROW = 1440, 390


def texts(page, selector):
    return page.value(f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)")


def tooltip(page):
    """The heading and the rows of the box at the pointer; None if it is hidden."""
    return page.value(
        "(() => { const box = document.querySelector('.tooltip'); if (!box || box.hidden) return null;"
        "const rows = [...box.querySelectorAll('div')].map(row => [...row.children].map(e => e.textContent));"
        "return [box.querySelector('b').textContent, Object.fromEntries(rows)]; })()"
    )


def view(page):
    """Return the shown range of the timeline, in per cent of the run."""
    left, width = page.value(
        "(() => { const { left, width } = document.querySelector('.strip div').style;"
        "return [left, width].map(text => Number(/([\\d.e-]+)%/.exec(text)[1])); })()"
    )
    return left, left + width


def choose(page, entry_number):
    page.value(
        f"(() => {{ const list = document.querySelector('#run'); list.value = '{entry_number}';"
        "list.dispatchEvent(new Event('change')); })()"
    )
    page.settle()


def canvas_colours(page, selector="canvas.lanes"):
    """How many pixels of each colour a canvas has."""
    return page.value(
        f"(() => {{ const canvas = document.querySelector({selector!r});"
        "const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        "const counts = {}; for (let i = 0; i < pixels.length; i += 4) {"
        "const colour = `${pixels[i]},${pixels[i + 1]},${pixels[i + 2]},${pixels[i + 3]}`;"
        "counts[colour] = (counts[colour] ?? 0) + 1; } return counts; })()"
    )


def is_a_span_of(run, heading, rows):
    """Return whether the trace has the span that the box describes."""
    rank, _, what = heading.partition(": ")
    kind = Kind[what.split()[0].upper()]
    array = run.trace.spans[int(rank.removeprefix("rank "))].of(kind)
    return any(
        math.isclose(seconds_of(rows["start"]), span["start_s"], rel_tol=1e-6, abs_tol=1e-9)
        and math.isclose(
            seconds_of(rows["length"]), span["end_s"] - span["start_s"], rel_tol=6e-3, abs_tol=1e-9
        )
        and rows["step"] == str(span["step"])
        and rows.get("peer") == (f"rank {span['peer']}" if span["peer"] >= 0 else None)
        and rows.get("bytes") == (format_bytes(span["nbytes"]) if span["nbytes"] else None)
        for span in array
    )


def seconds_of(text):
    number, unit = text.split()
    return float(number) * {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


# Drawing, without requests


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_page_opens_without_a_complaint_and_asks_for_nothing(open_page, page_file, width, dark):
    page = open_page(page_file, width=width, dark=dark)
    for number in range(3):
        choose(page, number)
    assert page.complaints() == []
    assert page.requests() == []
    assert page.value("document.documentElement.scrollWidth") == width  # nothing sticks out


def test_loss_and_metric_have_a_line_for_each_run(shown):
    for figure in ("loss", "metric"):
        lines = shown.value(
            f"[...document.querySelectorAll('#{figure} path.line')].map(e => e.getTotalLength())"
        )
        assert len(lines) == 3
        assert min(lines) > 20


@pytest.mark.slow
def test_the_timeline_is_painted_in_the_colours_of_its_kinds(shown):
    counts = canvas_colours(shown)
    assert len(counts) > 10
    painted = sum(count for colour, count in counts.items() if not colour.endswith(",0"))
    assert painted > 0.3 * sum(counts.values())
    compute = shown.value("getComputedStyle(document.querySelector('.part-compute')).fill")
    assert counts[",".join([*compute.removeprefix("rgb(").removesuffix(")").split(", "), "255"])] > 1000


def test_a_page_of_zero_shows_forward_and_backward_passes_and_what_travels_meanwhile(open_page, tmp_path):
    run = trained("zero:stage=3", steps=4)
    summary = str(run.trace.summary())
    assert summary.count("worker") == 5  # each rank, and the mean
    assert "rank 3 made the others wait" in summary
    write_page(tmp_path / "zero.html", [entry("zero:stage=3", run)], title="ZeRO")
    page = open_page(tmp_path / "zero.html")
    assert {"forward", "backward", "send", "receive"} <= {
        text.strip() for text in texts(page, ".legend span")
    }
    said = texts(page, "li")
    assert any("is the slowest to compute" in sentence for sentence in said)
    assert not any("stages" in sentence for sentence in said)


def test_lines_differ_by_more_than_colour(shown):
    looks = shown.value(
        "[...document.querySelectorAll('#metric g > .line')].map(line => [line.getAttribute('stroke-dasharray'),"
        "line.parentNode.querySelector('.marker').getAttribute('d')])"
    )
    assert len({tuple(look) for look in looks}) == 3
    assert len({marker for _, marker in looks}) == 3


@pytest.mark.slow
def test_a_page_of_which_all_entries_failed_opens_too(open_page, tmp_path):
    write_page(tmp_path / "report.html", [Entry(name="sync", error="it broke")], title="Failed")
    page = open_page(tmp_path / "report.html")
    assert page.complaints() == []
    assert texts(page, "td") == ["failed: it broke"]
    assert page.value("document.querySelectorAll('canvas, #loss').length") == 0


def test_runs_without_loss_or_steps_or_spans_open_too(open_page, tmp_path):
    empty = handmade(seconds=0.0)
    silent = handmade([(0, Kind.COMPUTE, 0.0, 4.0)], history=history_of([math.nan] * 9))
    entries = [entry("empty", empty), entry("silent", silent), entry("alone", trained("single", 1, slow={}))]
    write_page(tmp_path / "report.html", entries, title="Odd")
    page = open_page(tmp_path / "report.html")
    for number in range(3):
        choose(page, number)
    assert page.complaints() == []


# The figures are the runs'


def test_the_figures_of_the_table_are_those_of_the_runs(shown, entries):
    heads = texts(shown, "#figures thead th")
    for number, each in enumerate(entries):
        cells = texts(shown, f"#figures tbody tr:nth-child({number + 1}) > *")
        row, run = dict(zip(heads, cells, strict=True)), each.runs[0]
        reached_s = run.seconds_to_target
        assert row["strategy"] == run.strategy
        assert row["to target"] == ("not reached" if reached_s is None else format_seconds(reached_s))
        assert row["steps"] == str(run.steps)
        assert row["samples/s"] == f"{run.history[-1].samples / run.seconds:,.0f}"
        assert row["metric"] == f"{run.metric:.4f}"
        assert row["sent"] == format_bytes(sum(run.bytes_sent))
        assert row["compute"] == f"{run.trace.summary().compute_share:.0%}"
        assert row["idle"] == f"{run.trace.summary().idle_share:.0%}"


def test_the_matrices_are_those_of_the_chosen_run(page, entries):
    choose(page, 1)
    run = entries[1].runs[0]
    page.click("#direct-waits")
    page.settle()
    waits = [seconds for pair, seconds in sorted(run.trace.summary().waits.items()) if seconds > 0]
    found = texts(page, "#waits .on-heat, #waits .off-heat")
    assert [seconds_of(text) for text in found] == pytest.approx(waits, rel=6e-3)
    sends = {(each.rank, s["peer"]) for each in run.trace.spans for s in each.of(Kind.SEND) if s["nbytes"]}
    assert len(texts(page, "#bytes .on-heat, #bytes .off-heat")) == len(sends)
    assert page.value("document.querySelectorAll('#topology .edge').length") == len(sends)
    assert page.value("document.querySelectorAll('#topology rect.serves').length") == 1


def test_root_causes_of_waits_are_shown_first(page, entries):
    choose(page, 0)
    run = entries[0].runs[0]
    pairs = find_blame(run.trace.spans, run.trace.seconds).pairs
    found = texts(page, "#waits .on-heat, #waits .off-heat")
    assert [seconds_of(text) for text in found] == pytest.approx(
        [s for _, s in sorted(pairs.items())], rel=6e-3
    )
    slow_s = sum(seconds for (_, cause), seconds in pairs.items() if cause == 3)
    assert slow_s > 0.9 * sum(pairs.values()), "the slow rank"


def test_staleness_and_topology_are_there_where_there_are_any(page):
    shown = {}
    for number in range(3):
        choose(page, number)
        shown[number] = page.value("['staleness', 'topology'].map(id => !document.getElementById(id).hidden)")
    assert shown == {0: [False, True], 1: [True, True], 2: [True, True]}


def test_consensus_and_speed_up_are_drawn_where_there_are_any(open_page, page, tmp_path):
    assert page.value(
        "document.getElementById('consensus').hidden && document.getElementById('scaling').hidden"
    )
    runs = [trained("sync", workers, steps=4, slow={}) for workers in (1, 2)]
    runs[0].history = history_of([1.0, 0.5, 0.25], consensus=0.5)
    entries = [entry("sync", run, name=f"sync {place}") for place, run in enumerate(runs)]
    write_page(tmp_path / "report.html", entries, title="Two sizes")
    other = open_page(tmp_path / "report.html")
    assert other.complaints() == []
    assert other.value("document.querySelectorAll('#consensus path.line').length") == 1
    assert other.value("document.querySelectorAll('#scaling path.line').length") == 2  # and the ideal


def test_a_large_run_says_what_it_leaves_out(open_page, tmp_path):
    run = trained("sync", 100, steps=2, slow={}, math="none")
    write_page(tmp_path / "report.html", [entry("sync", run)], title="Large")
    page = open_page(tmp_path / "report.html")
    assert page.complaints() == []
    assert "64 of 101 ranks" in texts(page, "#timeline .note")[0]
    assert "2 ranks together" in texts(page, "#waits small")[0]


@pytest.mark.slow
def test_spans_that_are_left_out_are_told_of(open_page, long_page_file):
    page = open_page(long_page_file)
    assert page.complaints() == []
    assert "the first" in texts(page, "#timeline .note")[0]


# Interaction


def test_the_axis_of_the_curves_can_be_chosen(page):
    titles = {}
    for axis in ("seconds", "samples", "bytes", "steps"):
        page.click(f"button[data-value={axis}]")
        titles[axis] = texts(page, "#loss svg > text")[-1].split(",")[0]
        assert page.value("document.querySelectorAll('#loss path.line').length") == 3
    assert titles == {"seconds": "time", "samples": "samples", "bytes": "bytes sent", "steps": "steps"}


def test_a_line_can_be_hidden_and_shown(page):
    page.click("#curve-legend button")
    assert page.value("document.querySelectorAll('#loss path.line').length") == 2
    page.click("#curve-legend button")
    assert page.value("document.querySelectorAll('#loss path.line').length") == 3


def test_the_pointer_reads_the_curves(page, entries):
    left, top, width, height = page.box("#metric svg")
    page.mouse("mouseMoved", left + width - 20, top + height / 2)
    heading, rows = tooltip(page)
    assert heading.startswith("time: ")
    assert list(rows) == [each.name for each in entries]
    for each in entries:
        seen = [record.metric for record in each.runs[0].history if record.metric is not None]
        assert any(math.isclose(float(rows[each.name]), metric, rel_tol=1e-3) for metric in seen)


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_the_pointer_reads_spans_that_the_trace_has(page, entries, number):
    choose(page, number)
    run = entries[number].runs[0]
    left, top, width, height = page.box("canvas.lanes")
    kinds = set()
    for across in range(12, 98, 5):
        for lane in range(len(run.trace.spans)):
            y = top + 26 + (height - 26) * (lane + 0.35) / len(run.trace.spans)
            page.mouse("mouseMoved", left + width * across / 100, y)
            heading, rows = tooltip(page)
            kinds.add(heading.split(": ")[1].split()[0])
            assert heading.startswith(f"rank {lane}: ")
            assert heading.endswith(": idle") or is_a_span_of(run, heading, rows), (heading, rows)
    assert {"compute", "send", "wait"} <= kinds
    page.mouse("mouseMoved", left + width / 2, top - 40)
    assert tooltip(page) is None


@pytest.mark.slow
def test_the_wheel_zooms_about_the_pointer(page):
    page.click("[aria-label='Show the whole run']")
    assert view(page) == pytest.approx((0, 100), abs=1e-6)
    left, top, width, height = page.box("canvas.lanes")
    before = canvas_colours(page)
    for _ in range(5):
        page.mouse("mouseWheel", left + width - 2, top + height / 2, deltaX=0, deltaY=-200)
    start, end = view(page)
    assert end == pytest.approx(100, abs=0.5)  # the pointer was at the end
    assert start > 50
    assert canvas_colours(page) != before
    page.mouse("mouseWheel", left + width / 2, top + height / 2, deltaX=0, deltaY=200)
    assert view(page)[0] < start


@pytest.mark.slow
def test_dragging_moves_the_view(page):
    page.click("[aria-label='Show about ten steps']")
    left, top, width, height = page.box("canvas.lanes")
    start, end = view(page)
    page.drag((left + 0.6 * width, top + height / 2), (left + 0.4 * width, top + height / 2))
    moved_start, moved_end = view(page)
    assert moved_start > start
    assert moved_end - moved_start == pytest.approx(end - start)


@pytest.mark.slow
def test_buttons_zoom_and_move(page):
    start, end = view(page)
    page.click("[aria-label='Zoom in']")
    inner = view(page)
    assert start < inner[0] < inner[1] < end
    page.click("[aria-label='Later']")
    assert view(page)[0] > inner[0]
    page.click("[aria-label='Show the whole run']")
    assert view(page) == pytest.approx((0, 100), abs=1e-6)


def test_the_wheel_scrolls_the_page_when_there_is_nothing_to_zoom_out(page):
    page.click("[aria-label='Show the whole run']")
    left, top, width, height = page.box("canvas.lanes")
    before = page.value("scrollY")
    page.mouse("mouseWheel", left + width / 2, top + height / 2, deltaX=0, deltaY=120)
    page.wait_for(f"scrollY > {before}")


def test_the_keyboard_reaches_everything(page, entries):
    page.value("document.querySelector('canvas.lanes').focus()")
    start, end = view(page)
    page.key("+")
    assert view(page)[1] - view(page)[0] < end - start
    page.key("0")
    assert view(page) == pytest.approx((0, 100), abs=1e-6)
    seen = set()
    for key in ("ArrowDown", "ArrowDown", ".", ".", ".", ","):
        page.key(key)
        heading, rows = tooltip(page)
        assert heading.endswith(": idle") or is_a_span_of(entries[0].runs[0], heading, rows), (heading, rows)
        assert heading in texts(page, "[aria-live]")[0]
        seen.add((heading, rows["start"]))
    assert len(seen) >= 4
    for selector in ("#loss svg", "#waits svg"):
        page.value(f"document.querySelector('{selector}').focus()")
        page.settle()
        page.key("ArrowRight")
        assert tooltip(page) is not None


def test_every_control_can_be_focused_and_has_a_name(shown):
    nameless = shown.value(
        "[...document.querySelectorAll('button, select, input, canvas.lanes')].filter(each =>"
        "each.tabIndex < 0 || !(each.getAttribute('aria-label') || each.textContent"
        "|| each.closest('label')?.textContent)).length"
    )
    assert nameless == 0


@pytest.mark.slow
def test_light_and_dark_can_be_chosen(page):
    paper = "getComputedStyle(document.body).backgroundColor"
    light, painted = page.value(paper), canvas_colours(page)
    page.click("#theme")
    page.click("#theme")
    assert texts(page, "#theme") == ["Colours: dark"]
    assert page.value(paper) != light
    assert canvas_colours(page) != painted
    page.click("#theme")
    assert page.value(paper) == light
    assert canvas_colours(page) == painted


@pytest.mark.slow
def test_the_page_can_be_printed(open_page, page_file):
    page = open_page(page_file, width=720, dark=True)  # A4 between its margins
    assert len(page.call("Page.printToPDF")["data"]) > 20_000
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.value("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert page.value("document.documentElement.scrollWidth") == 720


# Introduction


def test_a_story_fits_every_screen_and_its_bars_are_drawn(open_page, tmp_path):
    predicted = pl.Comparison(
        entries=(
            entry("single"),
            entry("all-reduce:algorithm=ring"),
            entry("sync"),
            Entry(name="b", error="no"),
        )
    )
    measured = pl.Comparison(entries=(entry("sync"),))
    proofs = [pl.Proof(title=f"On {n} machines", predicted=predicted, measured=measured) for n in (4, 16)]
    measured.report(tmp_path / "report.html", title="Story", story=["It begins.", *proofs])
    for width in (WIDE, NARROW):
        page = open_page(tmp_path / "report.html", width=width)
        assert page.value("document.documentElement.scrollWidth") == width
        # Nothing reaches out of its figure: neither a bar nor the words behind it.
        assert page.value(
            "[...document.querySelectorAll('.proof')].every(figure => [...figure.querySelectorAll('svg, .bar > span')]"
            ".every(each => each.getBoundingClientRect().right <= figure.getBoundingClientRect().right + 1))"
        )
        first, second = page.value(
            "[...document.querySelectorAll('.proof')].map(each => each.getBoundingClientRect().top)"
        )
        assert (first == second) == (width == WIDE), "side by side where there is room"
        painted = page.value(
            "[...document.querySelectorAll('.bar rect')].map(each => getComputedStyle(each).stroke !== 'none')"
        )
        assert sorted(set(painted)) == [False, True], (
            "hollow where it was predicted, filled where it was measured"
        )
        assert page.complaints() == []


# Malicious content


def test_hostile_names_are_inert(open_page, tmp_path):
    hostile = "</script></style><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    run = trained("k-sync:k=3", steps=6)
    run.strategy = run.cluster = hostile
    run.environment = dict.fromkeys(run.environment, hostile)
    entries = [entry(hostile, run), entry("sync"), Entry(name=hostile + "2", error=hostile)]
    write_page(tmp_path / "report.html", entries, title=hostile, command=hostile)
    page = open_page(tmp_path / "report.html")
    left, top, width, height = page.box("#metric svg")
    page.mouse("mouseMoved", left + width / 2, top + height / 2)
    assert hostile in tooltip(page)[1]
    assert hostile in texts(page, "option")
    assert hostile in texts(page, "h1")
    assert page.value("window.hacked") is None
    assert page.value("document.querySelectorAll('img').length") == 0
    assert page.value("document.querySelectorAll('script').length") == 2
    assert page.complaints() == []
    assert page.requests() == []


def test_the_policy_refuses_any_other_script_and_any_request(page):
    page.value(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.ran = 1';"
        "document.body.append(script); })()"
    )
    refused = page.value("fetch('https://example.com').then(() => false, () => true)")
    assert page.value("window.ran") is None
    assert refused
    assert any("Content Security Policy" in complaint for complaint in page.complaints())
