import pytest
from chosen_runs import entry, run_of, with_figures
from refusals import refused

import paceline as pl
from paceline.analysis.comparison.entry import Entry

METRICS = (0.5, 0.98)


def found(**seconds_to_target):
    """Return a comparison of these strategies. None stands for a strategy that does not reach the target."""
    names = {name.replace("_", "-"): seconds for name, seconds in seconds_to_target.items()}
    entries = [
        entry(with_figures(run_of(name), metrics=METRICS if s else (0.1,), target=0.97, step_s=(s or 2) / 2))
        for name, s in names.items()
    ]
    return pl.Comparison(entries=tuple(entries))


@pytest.fixture(scope="module")
def proof():
    predicted = found(single=8.0, all_reduce=4.0, sync=2.0, map_reduce=None)
    predicted = pl.Comparison(entries=(*predicted.entries, Entry(name="async", error="no luck")))
    return pl.Proof(title="Mine", predicted=predicted, measured=found(all_reduce=4.4, sync=1.9))


def test_the_quickest_comes_first_and_who_does_not_get_there_last(proof):
    assert [row.predicted.name for row in proof.rows] == [
        "sync",
        "all-reduce",
        "single",
        "map-reduce",
        "async",
    ]


def test_an_error_is_the_share_by_which_the_measured_time_is_longer(proof):
    errors = {row.predicted.name: row.error for row in proof.rows}
    assert errors["all-reduce"] == pytest.approx(0.1)
    assert errors["sync"] == pytest.approx(-0.05)
    assert errors["single"] is None
    assert proof.largest_error == pytest.approx(0.1)


def test_as_text_it_is_a_table(proof):
    lines = [line.split() for line in str(proof).splitlines()]
    assert lines[0] == ["strategy", "predicted", "speed-up", "measured", "error"]
    assert lines[1] == ["sync", "2", "s", "4.00", "1.9", "s", "-5.0", "%"]
    assert lines[4][1:3] == ["not", "reached"]
    assert lines[5][1] == "failed"


def test_before_anything_has_run_there_is_nothing_measured(proof):
    beforehand = pl.Proof(title="Mine", predicted=proof.predicted)
    assert beforehand.header == ["strategy", "predicted", "speed-up"]
    assert all(len(row) == 3 for row in beforehand.cells)
    assert beforehand.largest_error is None


def test_a_run_that_does_not_get_there_has_no_error(proof):
    missed = pl.Proof(title="Mine", predicted=proof.predicted, measured=found(sync=None))
    assert missed.largest_error is None
    assert missed.cells[0][3:] == ["not reached", "\u2013"]


def test_what_was_not_predicted_is_refused(proof):
    with refused("measured", "sync"):
        pl.Proof(title="Mine", predicted=found(all_reduce=1.0), measured=found(sync=1.0))
