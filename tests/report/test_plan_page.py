"""The page of a plan."""

import re

import pytest
from small_plans import cluster, mlp

import paceline as pl
from paceline.planner.check import Check, Checked
from paceline.report.plan_page import plan_page


@pytest.fixture(scope="module")
def plan():
    strategies = ["single", "map-reduce", "k-sync"]
    return pl.plan(mlp(), cluster(hosts=2, card="1Gbps"), strategies=strategies, price_per_hour=2.0)


def test_the_page_has_the_table_the_charts_and_the_sentences(plan, tmp_path):
    plan.report(tmp_path / "plan.html", command="paceline plan mine.py")
    page = (tmp_path / "plan.html").read_text()
    for text in ("Ranked configurations", "Time against memory", "Time against cost", "Speed-up", "network"):
        assert text in page
    assert "paceline plan mine.py" in page
    assert page.count("<circle") >= 2 * len(plan.ranked)


def test_the_page_is_self_contained_and_every_chart_has_a_text(plan):
    page = plan_page(plan)
    assert not re.search(r"""(src|href)=["']""", page)
    assert "<script" not in page
    assert all("aria-label" in tag or "aria-hidden" in tag for tag in re.findall(r"<svg[^>]*>", page))


def test_measured_times_are_shown(plan):
    row = Checked(entry=plan.best, predicted_s=1.0, measured_s=1.25)
    plan.checked = Check(cluster="here", what="Seconds of a batch", rows=(row,))
    page = plan_page(plan)
    plan.checked = None
    assert "Predicted and measured" in page
    assert "+25.0 %" in page


def test_titles_are_escaped(plan):
    assert "<b>" not in plan_page(plan, title="<b>")


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (380, False)])
def test_nothing_is_cut_off_on_a_wide_and_on_a_narrow_screen(plan, open_page, tmp_path, width, dark):
    rows = tuple(Checked(entry=each, predicted_s=13.0, measured_s=14.0) for each in plan.ranked[:2])
    plan.checked = Check(cluster="here", what="Seconds of a batch", rows=rows)
    plan.report(tmp_path / "plan.html")
    plan.checked = None
    page = open_page(tmp_path / "plan.html", width=width, dark=dark)
    assert page.value("document.documentElement.scrollWidth") == width
    cut_off = page.value(
        "[...document.querySelectorAll('svg text')].filter(text => { const own = text.getBoundingClientRect();"
        "const all = text.ownerSVGElement.getBoundingClientRect();"
        "return own.left < all.left - 1 || own.right > all.right + 1; }).map(text => text.textContent)"
    )
    assert cut_off == []
    names = page.value(
        "[...document.querySelectorAll('.figures tbody th')].map(each => each.getBoundingClientRect().height)"
    )
    assert max(names) < 140  # names wrap between parameters, not after each letter
