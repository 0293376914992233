import dataclasses
import itertools
import math

import pytest
from old_runs import without_message_ids
from tasks import a_task, simulated
from traces import compute, ranks, received, send

import paceline as pl
from paceline.analysis.diagnosis.diagnose import diagnose
from paceline.runs.run import Run
from paceline.trace import Trace


def run_of(strategy, *, steps=40, **cluster):
    return pl.train(a_task(), strategy, simulated(4, math="none", **cluster), steps=steps)


def test_the_slowest_rank_is_found_with_its_factor():
    found = diagnose(run_of("all-reduce", slow={2: 3.0})).compute
    assert (found.rank, found.is_slow) == (2, True)
    assert found.factor == pytest.approx(3.0)
    assert found.seconds == pytest.approx(0.03)
    assert found.cancelled_share == 0.0


def test_equal_ranks_are_not_slow():
    found = diagnose(run_of("all-reduce"))
    assert not found.compute.is_slow
    assert found.step_without_s is None


def test_a_rank_whose_computations_are_all_cancelled_is_slow_without_a_figure():
    found = diagnose(run_of("k-sync:k=3", slow={3: 4.0}))
    assert found.compute.rank == 3
    assert found.compute.seconds == math.inf
    assert found.compute.cancelled_share == 1.0
    assert found.step_without_s is None


def test_a_step_without_the_slow_rank_is_that_of_the_others():
    found = diagnose(run_of("all-reduce", slow={3: 4.0}))
    assert found.step_without_s == pytest.approx(run_of("all-reduce").step_seconds, rel=0.02)


def test_one_worker_has_nobody_to_be_slower_than():
    assert diagnose(run_of("single")).compute is None


def test_idle_time_is_that_of_the_workers_and_not_of_the_servers():
    """Three of four workers wait three of four tenths; the server waits nearly always."""
    assert diagnose(run_of("sync", slow={3: 4.0})).idle_share == pytest.approx(0.75 * 0.75, abs=0.02)


def test_the_rank_with_the_slow_links_is_found():
    """Every rank sends to every other rank at 1 s; messages to and from rank 2 take 3 s, others 1 s."""
    spans = [[compute(0, 1)] for _ in range(4)]
    for message, (source, to) in enumerate(itertools.permutations(range(4), 2)):
        travel_s = 3 if 2 in (source, to) else 1
        spans[source].append(send(1, 1.5, to, message=message))
        spans[to] += received(1, 0.5 + travel_s, 1 + travel_s, source, message=message)
    run = dataclasses.replace(run_of("single", steps=1), trace=Trace(ranks(*spans), 4.0))
    found = diagnose(run).link
    assert (found.rank, found.factor, found.is_slow) == (2, 3.0, True)


def test_two_ranks_have_one_link_and_nothing_to_hold_it_against():
    run = pl.train(a_task(), "all-reduce:algorithm=ring", simulated(2, math="none"), steps=5)
    assert diagnose(run).link is None


def test_a_real_run_is_diagnosed():
    run = pl.train(a_task(), "all-reduce", pl.Local(workers=2, delay={1: pl.times.Constant(0.02)}), steps=20)
    found = diagnose(run)
    assert (found.compute.rank, found.compute.is_slow) == (1, True)
    assert found.blame.worst == 1
    assert found.step_without_s < run.step_seconds


@pytest.mark.parametrize("strategy", ["all-reduce", "async", "k-sync:k=1"])
def test_a_diagnosis_is_the_same_after_saving_and_loading(tmp_path, strategy):
    run = run_of(strategy, slow={3: 4.0})
    run.save(tmp_path)
    assert diagnose(Run.load(tmp_path)) == diagnose(run)


def test_a_trace_of_a_version_without_message_ids_is_diagnosed_without_causes():
    run = run_of("sync", slow={3: 4.0})
    old = Trace.from_arrays(without_message_ids(run.trace.to_arrays()))
    found = diagnose(dataclasses.replace(run, trace=old))
    assert (found.compute.rank, found.blame.worst) == (3, 3)
    assert (found.step_without_s, found.link, found.has_causes) == (None, None, False)
    assert diagnose(run).has_causes


def test_a_rank_that_died_has_left_no_trace_and_is_passed_over():
    run = run_of("sync", slow={3: 4.0})
    survivors = [spans for spans in run.trace.spans if spans.rank != 1]
    found = diagnose(dataclasses.replace(run, trace=Trace(survivors, run.trace.seconds)))
    assert found.compute.rank == 3
    assert found.step_without_s < run.step_seconds
