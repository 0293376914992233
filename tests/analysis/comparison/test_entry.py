import dataclasses

import pytest
from refusals import refused
from tasks import a_task, simulated

import paceline as pl
from paceline.analysis.comparison.entry import Entry


@pytest.fixture(scope="module")
def run():
    return pl.train(a_task(), "single", simulated(1, math="none"), steps=2)


def test_an_entry_has_runs_or_an_error(run):
    with refused("entry x"):
        Entry(name="x")
    with refused("entry x"):
        Entry(name="x", runs=(run,), error="both")


def test_the_typical_run_is_that_of_the_middle_time(run):
    times = [dataclasses.replace(run, seconds=s) for s in (3.0, 1.0, 2.0)]
    assert Entry(name="x", runs=tuple(times)).typical.seconds == 2.0


def test_the_strategy_is_that_of_the_runs_whatever_the_name(run):
    assert Entry(name="single, 1 worker", runs=(run,)).strategy == "single"
    assert Entry(name="async", error="why").strategy == "async"
