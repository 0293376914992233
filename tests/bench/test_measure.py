import json

import pytest

import paceline as pl
from paceline.bench.measure import measure, report_of
from paceline.bench.patterns import PATTERNS
from paceline.bench.spec import Spec

pytestmark = pytest.mark.xdist_group("measure")  # measured once

SMALL = {"begin_bytes": 400, "end_bytes": 40_000, "factor": 100, "repeat": 3}
MACHINE = {"cores": 2, "load": 0.5, "torch": "2"}


def measured(pattern, workers=2, on_size=None, **changes):
    spec = Spec(pattern=pattern, workers=workers, **(SMALL | changes))
    return measure(spec, pl.Local(workers=workers), on_size)


@pytest.fixture(scope="module")
def all_reduce():
    places = []
    report = measured("all-reduce", algorithms=("ring", "tree"), against="gloo", on_size=places.append)
    return report, places


def test_there_is_a_row_for_each_size_and_case(all_reduce):
    report, _ = all_reduce
    assert [(row.size_bytes, row.algorithm) for row in report.rows] == [
        (size, name) for size in (400, 40_000) for name in ("ring", "tree", "gloo")
    ]
    assert all(0 < row.fastest_s <= row.seconds <= row.slowest_s for row in report.rows)
    assert {row.repeats for row in report.rows} == {3}


def test_results_are_right_and_each_size_has_a_winner(all_reduce):
    report, _ = all_reduce
    assert report.mistake == ""
    assert set(report.winners) == {400, 40_000}
    for size, name in report.winners.items():
        quickest = min((row for row in report.rows if row.size_bytes == size), key=lambda row: row.seconds)
        assert name == quickest.algorithm


def test_the_ratio_is_the_baselines_time_over_ours(all_reduce):
    report, _ = all_reduce
    seconds = {(row.size_bytes, row.algorithm): row.seconds for row in report.rows}
    assert set(report.ratios) == {"ring", "tree"}
    for name, by_size in report.ratios.items():
        for size, ratio in by_size.items():
            assert ratio == pytest.approx(seconds[size, "gloo"] / seconds[size, name])


def test_the_link_is_fitted_to_the_ping_pong_of_all_sizes(all_reduce):
    report, _ = all_reduce
    assert report.fit.size_bytes == (400, 40_000)
    assert all(seconds > 0 for seconds in report.fit.seconds)
    assert report.fit.link.latency_s >= 0
    assert report.fit.link.bytes_per_s > 0


def test_rank_0_tells_when_each_size_begins(all_reduce):
    assert all_reduce[1] == [0, 1]


def test_the_report_is_json_with_rows_winners_ratios_fit_and_machine(all_reduce):
    figures = json.loads(json.dumps(all_reduce[0].as_dict(), allow_nan=False))
    assert {"rows", "winners", "ratios", "fit", "machine"} <= figures.keys()
    assert len(figures["rows"]) == 6
    assert figures["winners"].keys() == {"400", "40000"}
    assert figures["ratios"]["ring"].keys() == {"400", "40000"}
    assert {"latency_s", "bytes_per_s", "largest_error", "points"} <= figures["fit"].keys()
    assert {"cores", "torch", "load"} <= figures["machine"].keys()


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "all-reduce"])
def test_every_pattern_is_right_by_ours_and_by_the_baseline(pattern):
    report = measured(pattern, workers=3, against="gloo", repeat=2)
    assert report.mistake == ""
    assert {row.algorithm for row in report.rows} == {*PATTERNS[pattern].algorithms, "gloo"}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int64"])
def test_every_dtype_is_right(dtype):
    assert measured("all-reduce", algorithms=("ring", "native"), dtype=dtype, repeat=1).mistake == ""


def test_every_schedule_is_right():
    algorithms = [name for name in PATTERNS["all-reduce"].algorithms if name not in ("shared", "auto")]
    assert measured("all-reduce", workers=3, algorithms=tuple(algorithms), repeat=1).mistake == ""


def test_one_worker_can_be_benched_and_has_no_link():
    report = measured("all-reduce", workers=1, algorithms=("ring",))
    assert report.fit is None
    assert {row.busbw_bytes_per_s for row in report.rows} == {0.0}


# Results of the ranks


def brought(*times, mistakes=()):
    """The result of one rank, with one size and one case."""
    return {"sizes": [{"ring": [list(pair) for pair in times]}], "mistakes": list(mistakes)}


def reported(pattern, *results):
    spec = Spec(pattern=pattern, workers=len(results), begin_bytes=4, end_bytes=4, algorithms=("ring",))
    return report_of(spec, results, where="here", machine=MACHINE)


def test_a_calls_time_is_that_of_its_slowest_rank_and_the_row_has_the_median():
    report = reported("all-reduce", brought((0, 1), (5, 9), (10, 11)), brought((0, 3), (5, 6), (10, 12)))
    assert report.rows[0].seconds == 3
    assert (report.rows[0].fastest_s, report.rows[0].slowest_s) == (2, 4)


def test_a_wrong_result_is_counted_once_a_call_told_and_does_not_win():
    mistakes = [[0, "ring", 2, "element 5 of rank 0 is 1, but must be 2"]]
    report = reported("all-reduce", brought((0, 1), mistakes=mistakes), brought((0, 1), mistakes=mistakes))
    assert report.rows[0].wrong == 1
    assert report.winners == {}
    assert report.mistake == (
        "all-reduce by ring of 4 B gave a wrong result: element 5 of rank 0 is 1, but must be 2"
    )


def test_a_barrier_that_a_rank_leaves_before_another_has_come_is_wrong():
    early = {"sizes": [{"dissemination": [[0.0, 1.0], [10.0, 11.0]]}], "mistakes": []}
    late = {"sizes": [{"dissemination": [[0.5, 1.0], [11.5, 12.0]]}], "mistakes": []}
    report = report_of(Spec(pattern="barrier", workers=2), [early, late], where="here", machine=MACHINE)
    assert report.rows[0].wrong == 1
    assert "let a rank leave before all had entered" in report.mistake
