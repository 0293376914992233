"""A run is assembled from the outcomes of its ranks."""

import logging
import math

from paceline.clusters.base.job import Job
from paceline.clusters.base.outcome import Outcome, assemble
from paceline.strategies import parse


def a_job(ranks, **changes):
    return Job(strategy=parse("all-reduce"), roles=("worker",) * ranks, seed=0, **changes)


def a_record(step, seconds, **changes):
    return {"step": step, "seconds": seconds, "metric": None, "extra": {}} | changes


def an_update(step, seconds, samples=4):
    return a_record(step, seconds, loss=1.0, samples=samples)


def test_the_loss_of_a_step_is_the_mean_over_the_samples_of_all_workers():
    records = [a_record(1, 0.5), a_record(2, 1.0)]
    first = Outcome(rank=0, records=records, losses=[(0, 1.0, 3), (1, 2.0, 3)])
    second = Outcome(rank=1, losses=[(0, 5.0, 1), (1, 6.0, 1)])
    history = assemble(a_job(2), "here", [first, second], None).history
    assert [(record.loss, record.samples) for record in history] == [(2.0, 4), (3.0, 8)]


def test_the_bytes_of_a_step_are_those_of_all_ranks_by_its_end_whether_they_keep_step_or_not():
    records = [a_record(1, 1.0, loss=0.0, samples=1), a_record(2, 2.0, loss=0.0, samples=2)]
    in_step = Outcome(rank=0, records=records, bytes_at=[10, 20])
    own_pace = Outcome(rank=1, bytes_over_time=[(0.5, 100), (1.5, 300), (9.0, 400)])
    another = Outcome(rank=2, bytes_over_time=[(1.0, 1000)])
    history = assemble(a_job(3), "here", [in_step, own_pace, another], None).history
    assert [record.bytes for record in history] == [1110, 1320]


def test_updates_at_each_workers_own_pace_are_numbered_in_order_of_time():
    first = Outcome(rank=0, updates=[an_update(1, 1.0), an_update(3, 3.0)], metric=0.75)
    second = Outcome(rank=1, updates=[an_update(2, 2.0)])
    history = assemble(a_job(2, steps=3), "here", [first, second], None).history
    assert [(record.step, record.seconds, record.samples) for record in history] == [
        (1, 1.0, 4),
        (2, 2.0, 8),
        (3, 3.0, 12),
    ]
    assert [record.metric for record in history] == [None, None, 0.75]


def test_updates_of_a_lost_rank_are_in_the_history_and_those_it_could_not_tell_of_have_no_loss(caplog):
    first = Outcome(rank=0, updates=[an_update(2, 2.0), an_update(4, 4.0)], lost=[(1, 3)], counted=5)
    lost = Outcome(rank=1, updates=[an_update(1, 1.0)])
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = assemble(a_job(2, steps=5), "here", [first, lost], None)
    assert [(record.step, record.samples) for record in run.history] == [(n, 4 * n) for n in range(1, 6)]
    assert [record.seconds for record in run.history] == [1.0, 2.0, 2.0, 4.0, 4.0]
    assert [math.isnan(record.loss) for record in run.history] == [False, False, True, False, True]
    assert "the losses of 2 of 5 updates are unknown: rank 1 was lost" in caplog.text


def test_updates_after_the_one_that_was_to_be_the_last_are_in_the_history_too():
    """The first rank ended the run with update 2, when the second had begun another and the lost one had not."""
    first = Outcome(rank=0, updates=[an_update(2, 2.0)], lost=[(1, 3)], counted=2)
    second = Outcome(rank=1, updates=[an_update(1, 1.0)])
    third = Outcome(rank=2, updates=[an_update(4, 4.0)])
    run = assemble(a_job(3, steps=9), "here", [first, second, third], None)
    assert [(record.step, record.seconds) for record in run.history] == [(1, 1.0), (2, 2.0), (3, 4.0)]


def test_a_lost_rank_is_named_once_with_the_step_in_which_it_was_first_missed():
    first = Outcome(rank=0, lost=[(2, 7), (1, 5)])
    second = Outcome(rank=1, lost=[(1, 9)])  # the driver's own note
    third = Outcome(rank=2, lost=[(2, 3)])
    fourth = Outcome(rank=3, lost=[(2, 6)])
    assert assemble(a_job(4), "here", [first, second, third, fourth], None).lost == [(1, 5), (2, 6)]


def test_staleness_is_counted_over_all_ranks():
    outcomes = [Outcome(rank=0, staleness={2: 1, 0: 4}), Outcome(rank=1, staleness={2: 3})]
    assert assemble(a_job(2), "here", outcomes, None).staleness == {0: 4, 2: 4}
