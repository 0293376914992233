"""The parts of `make demo`. The demo itself takes about a minute."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest
from chosen_runs import run_of
from small_plans import aimed

import paceline as pl
from paceline.planner.check import Check, Checked

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    module = sys.modules["demo"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plan():
    """Return a plan for a small task with one slow worker."""
    cluster = pl.Simulated(4, compute=pl.times.Constant("10ms"), link=pl.Link("1Gbps", "50us"), slow={3: 8.0})
    return pl.plan(aimed(), cluster, strategies=["single", "all-reduce", "sync", "k-sync"], workers=(4, 4))


def checked(plan, **changes):
    rows = tuple(
        Checked(entry=each, predicted_s=each.seconds, measured_s=1.05 * each.seconds, **changes)
        for each in plan.ranked[:2]
    )
    return Check(cluster="local workers", what="Seconds to the target", rows=rows)


def test_the_same_machines_are_simulated_and_emulated(demo):
    for machines in (4, 16):
        given = demo.described(machines, batch_size=64)
        assert pl.Simulated(**given).compute == pl.Local(**given).compute
        # For any number of machines, all of them together compute a batch in the same time.
        assert given["compute"].mean_s * machines == pytest.approx(64 * demo.SAMPLE_MS * 1e-3)


def test_the_best_two_strategies_the_default_and_the_slowest_are_proved(demo, plan):
    found = demo.chosen(plan)
    assert found[0] is plan.best
    assert found[0].family != found[1].family
    assert demo.DEFAULT in [entry.strategy for entry in found]
    assert found[-1].seconds == max(entry.seconds for entry in plan.ranked if entry.workers > 1)
    assert demo.families(plan)[0] == plan.best.family


def test_the_story_begins_with_the_best_and_the_default(demo, plan):
    lead, measured = demo.story(plan, checked(plan))
    assert str(plan.best) in lead
    assert demo.DEFAULT in lead
    assert "5.0%" in measured


def test_gradients_that_did_not_fit_are_named(plan):
    run = dataclasses.replace(run_of("sync"), environment={"overruns": "2 of 9 gradients took longer"})
    assert "2 of 9 gradients" in checked(plan, run=run).summary[-1]


def test_the_pages_of_the_plan_and_of_the_runs_are_written(demo, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "PLAN", tmp_path / "plan.html")
    monkeypatch.setattr(demo, "RUNS", tmp_path / "report.html")
    plan.checked = done = checked(plan, run=run_of("sync"))
    demo.reported(plan, done)
    plan.checked = None
    assert "Predicted and measured" in demo.PLAN.read_text()
    assert "the emulated times" in demo.RUNS.read_text()


def test_the_page_shows_what_the_demo_prints(demo):
    page = (ROOT / "docs" / "demo.md").read_text()
    block = page.partition("<!-- demo: begin -->")[2].partition("<!-- demo: end -->")[0]
    shown = {line.split()[0].partition(":")[0] for line in block.splitlines() if line.strip()}
    assert {"single", demo.DEFAULT, "k-sync", "decentralized"} <= shown
    assert all(line in block for line in demo.NEXT.splitlines())
    clusters = (pl.Simulated(**demo.described(4, 64)), pl.Simulated(**demo.described(16, 64)))
    assert all(str(cluster) in block for cluster in (*clusters, pl.Local(**demo.described(4, 64))))
