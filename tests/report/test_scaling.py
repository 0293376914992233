import pytest
from report.cases import entry, handmade, history_of

from paceline.report.scaling import scaling, worker_count


def timed(strategy, workers, seconds, servers=0):
    """800 samples in this number of seconds."""
    roles = ["worker"] * workers + ["server"] * servers
    run = handmade(ranks=workers + servers, roles=roles, seconds=seconds, history=history_of([1.0] * 100))
    run.strategy = strategy
    return run


def entry_of(run, name=None):
    return entry(run.strategy, run, name=name)


def test_servers_do_not_count_as_workers():
    assert worker_count(timed("sync", 3, 1.0, servers=2)) == 3


def test_one_number_of_workers_has_no_line():
    assert scaling([entry_of(timed("all-reduce", 4, 1.0)), entry_of(timed("sync", 4, 1.0))]) is None


def test_the_speed_is_over_one_worker_where_one_ran_alone():
    entries = [entry_of(timed("single", 1, 8.0))]
    entries += [entry_of(timed("sync", n, 8.0 / n, servers=1), name=f"sync on {n}") for n in (2, 4)]
    found = scaling(entries)
    assert found["base"] == "one worker"
    [line] = found["lines"]
    assert (line["name"], line["entry"], line["workers"]) == ("sync", 1, [2, 4])
    assert line["speed_up"] == pytest.approx([2, 4])
    assert line["ideal"] == [2, 4]


def test_without_a_run_alone_it_is_over_the_smallest_number():
    [line] = scaling([entry_of(timed("sync", 8, 3.0), name="b"), entry_of(timed("sync", 2, 6.0), name="a")])[
        "lines"
    ]
    assert line["workers"] == [2, 8]
    assert line["speed_up"] == pytest.approx([1, 2])
    assert line["ideal"] == [1, 4]


def test_repeats_count_by_their_median():
    slow, usual, fast = (timed("sync", 2, seconds) for seconds in (100.0, 8.0, 0.1))
    entries = [entry("sync", slow, usual, fast, name="two"), entry_of(timed("sync", 4, 4.0), name="four")]
    [line] = scaling(entries)["lines"]
    assert line["speed_up"] == pytest.approx([1, 2])


def test_a_run_without_steps_is_left_out():
    assert scaling([entry_of(timed("sync", 2, 6.0), name="a"), entry_of(handmade(ranks=4), name="b")]) is None
