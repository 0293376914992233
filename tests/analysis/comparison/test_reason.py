import pytest
from chosen_runs import entry, run_of, with_figures

from paceline.analysis.comparison.reason import Seen, reason
from paceline.analysis.comparison.table import rows
from paceline.analysis.diagnosis.diagnose import diagnose

METRICS = (0.5, 0.9, 0.98)


def seen(run):
    return Seen(rows([entry(run)])[0], run, diagnose(run))


@pytest.fixture(scope="module")
def waiting():
    return run_of("all-reduce", slow={3: 4.0}, steps=40)


def test_who_discards_a_slow_rank_wins_over_who_waits_for_it(waiting):
    winner = seen(run_of("k-sync:k=3", slow={3: 4.0}, steps=40))
    said = reason(winner, [seen(waiting)])
    assert said == "all-reduce waits 56% of the time for rank 3; k-sync:k=3 discards it."


def test_who_goes_on_without_a_slow_rank_does_not_wait(waiting):
    winner = seen(run_of("async", slow={3: 4.0}, steps=40))
    assert reason(winner, [seen(waiting)]) == "all-reduce waits 56% of the time for rank 3; async does not."


def test_a_server_is_called_one(waiting):
    served = seen(run_of("sync"))
    assert (served.who(4), served.who(3)) == ("its server (rank 4)", "rank 3")


def test_one_worker_waits_for_nobody(waiting):
    said = reason(seen(run_of("single", workers=1)), [seen(waiting)])
    assert said.endswith("single has one worker and never waits.")


def test_who_needs_fewer_samples_wins_where_nobody_waits():
    fresh = with_figures(run_of("all-reduce"), metrics=METRICS, target=0.97, samples=100)
    stale = with_figures(run_of("async"), metrics=(0.1, *METRICS), target=0.97, samples=100, staleness={3: 4})
    said = reason(seen(fresh), [seen(stale)])
    assert said == (
        "all-reduce reaches the target with 300 samples; "
        "async needs 400 (mean staleness of its gradients: 3.0 updates)."
    )


def test_who_communicates_less_wins_where_both_need_as_many_samples():
    from paceline.costs import Link

    wide = with_figures(run_of("all-reduce:algorithm=ring", link=Link.ideal()), metrics=METRICS, target=0.97)
    narrow = with_figures(run_of("map-reduce", link=Link("100kbps", "1us")), metrics=METRICS, target=0.97)
    said = reason(seen(wide), [seen(narrow)])
    assert "map-reduce communicates" in said
    assert said.endswith("all-reduce:algorithm=ring 0%.")


def test_else_the_pace_tells():
    quick = with_figures(run_of("single", workers=1), metrics=METRICS, target=0.97)
    slow = with_figures(run_of("single", workers=1), metrics=METRICS, target=0.97, step_s=2.0)
    assert (
        reason(seen(quick), [seen(slow)])
        == "single processes 8 samples a second; single, the second best, 4."
    )
