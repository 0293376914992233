import dataclasses
import math

import pytest
from chosen_runs import entry, run_of, with_figures

from paceline.analysis.comparison.entry import Entry
from paceline.analysis.comparison.table import NOTHING, brief, cells, columns, mean_staleness, rows

METRICS = (0.5, 0.9, 0.98)


@pytest.fixture(scope="module")
def single():
    return run_of("single", workers=1)


@pytest.fixture(scope="module")
def quick():
    return run_of("all-reduce", slow={3: 4.0})


def test_a_row_is_what_the_run_says(single):
    run = with_figures(single, metrics=METRICS, target=0.97, bytes_sent=[100, 20], staleness={0: 1, 2: 3})
    (row,) = rows([entry(run)])
    assert (row.name, row.steps, row.seconds, row.seconds_to_target) == ("single", 3, 3.0, 3.0)
    assert (row.metric, row.samples_per_s, row.bytes_sent) == (0.98, 8.0, 120)
    assert row.staleness == 1.5
    assert row.spread is None
    assert row.compute_share == run.trace.summary().compute_share


def test_figures_are_medians_over_the_repeats_with_their_spread(single):
    runs = [with_figures(single, metrics=METRICS, target=0.97, step_s=s) for s in (2.0, 1.0, 3.0)]
    (row,) = rows([entry(*runs)])
    assert row.seconds_to_target == 6.0
    assert row.spread == (3.0, 9.0)


def test_a_target_that_half_of_the_runs_miss_is_not_reached(single):
    hit, miss = (with_figures(single, metrics=METRICS, target=t) for t in (0.97, 0.99))
    missing = with_figures(single, metrics=(0.5, 0.6), target=0.97)
    (row,) = rows([entry(hit, missing)])
    assert row.seconds_to_target is None
    assert row.spread == (3.0, math.inf)
    assert rows([entry(miss)])[0].seconds_to_target is None


def test_one_missed_target_of_three_is_told(single):
    hit = with_figures(single, metrics=METRICS, target=0.97)
    missing = with_figures(single, metrics=(0.5, 0.6), target=0.97)
    table = rows([entry(hit, hit, missing)])
    assert cells(table[0], table)[1] == "3 s, not always"


def test_speed_up_is_by_time_to_the_target(single, quick):
    alone = with_figures(single, metrics=METRICS, target=0.97, step_s=4.0)
    other = with_figures(quick, metrics=METRICS, target=0.97, step_s=1.0)
    table = rows([entry(alone), entry(other)])
    assert [row.speed_up for row in table] == [1.0, 4.0]


def test_speed_up_without_a_target_is_by_samples_a_second(single, quick):
    table = rows(
        [
            entry(with_figures(single, metrics=METRICS)),
            entry(with_figures(quick, metrics=METRICS, samples=24)),
        ]
    )
    assert [row.speed_up for row in table] == [1.0, 3.0]


def test_who_misses_the_target_has_no_speed_up(single, quick):
    alone = with_figures(single, metrics=METRICS, target=0.97)
    other = with_figures(quick, metrics=(0.1, 0.2), target=0.97)
    assert rows([entry(alone), entry(other)])[1].speed_up is None


def test_without_single_there_is_no_speed_up(quick):
    table = rows([entry(with_figures(quick, metrics=METRICS))])
    assert table[0].speed_up is None
    assert "speed-up" not in columns(table)


def test_a_failed_entry_is_a_row_that_says_why(single):
    table = rows(
        [entry(with_figures(single, metrics=METRICS, target=0.97)), Entry(name="async", error="no luck")]
    )
    assert columns(table)[-1] == "failed"
    failed = cells(table[1], table)
    assert failed[0] == "async"
    assert failed[-1] == "no luck"
    assert set(failed[1:-1]) == {NOTHING}
    assert cells(table[0], table)[-1] == ""


def test_columns_hang_on_what_there_is(single):
    aimed = rows([entry(with_figures(single, metrics=METRICS, target=0.97))])
    free = rows([entry(with_figures(single, metrics=(None, None)))])
    assert columns(aimed)[1] == "to target"
    assert columns(free)[1] == "time"
    assert "metric" not in columns(free)
    assert "loss" in columns(free)


def test_cells_are_short_texts_with_units(single):
    run = with_figures(single, metrics=METRICS, target=0.97, bytes_sent=[2048], samples=8000)
    table = rows([entry(run)])
    told = dict(zip(columns(table), cells(table[0], table), strict=True))
    assert told["to target"] == "3 s"
    assert told["samples/s"] == "8,000"
    assert told["metric"] == "0.9800"
    assert told["sent"] == "2 KiB"
    assert told["compute"] == "100%"


def test_the_spread_is_half_the_range_in_parts_of_the_median(single):
    runs = [with_figures(single, metrics=METRICS, target=0.97, step_s=s) for s in (0.9, 1.0, 1.1)]
    table = rows([entry(*runs)])
    assert cells(table[0], table)[1] == "3 s ±10%"


def test_a_run_that_counts_no_staleness_has_none(single):
    assert mean_staleness(with_figures(single, metrics=METRICS, staleness={})) is None


def test_a_traceback_is_told_by_its_first_and_last_line():
    error = "rank 2 failed in step 3:\nTraceback (most recent call last):\n  File x\nKeyError: 'loss'"
    assert brief(error) == "rank 2 failed in step 3: KeyError: 'loss'"
    assert brief("one line") == "one line"


def test_other_metrics_have_columns_of_their_own(single, quick):
    runs = [with_figures(run, metrics=METRICS) for run in (single, quick)]
    runs[0].other_metrics = ["f1"]
    for number, record in enumerate(runs[0].history):
        record.extra["f1"] = float(number)
    table = rows([entry(run) for run in runs])
    place = columns(table).index("f1")
    assert columns(table)[place - 1] == "metric"
    assert [cells(row, table)[place] for row in table] == ["2.0000", NOTHING]


def test_memory_is_that_of_the_rank_that_held_most(single):
    runs = [
        dataclasses.replace(single, memory=[{"total": 2048}, {"total": largest}])
        for largest in (5120, 3072, 4096)
    ]
    (row,) = table = rows([entry(*runs)])
    assert row.memory_bytes == 4096
    assert dict(zip(columns(table), cells(row, table), strict=True))["memory"] == "4 KiB"


def test_runs_of_older_versions_have_no_memory_and_no_column_of_it(single, quick):
    old = dataclasses.replace(single, memory=[])
    assert "memory" not in columns(rows([entry(old)]))
    table = rows([entry(old), entry(quick)])
    place = columns(table).index("memory")
    assert [cells(row, table)[place] == NOTHING for row in table] == [True, False]
