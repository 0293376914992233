"""A cluster in a box: local workers that take the time of emulated machines."""

import logging
import os
import signal

import numpy as np
import pytest
import torch
from processes import PATIENCE_S
from refusals import has, raised, refused
from tasks import a_task, numbers, simulated

import paceline as pl
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.local.emulation import EMULATED, OVERRUNS, note_emulation
from paceline.collectives import choose_algorithm
from paceline.errors import DeadlineError
from paceline.links import clock
from paceline.trace import Kind, Recorder

LINK = pl.Link("1Gbps", "100us")
TIMES = pl.times.ShiftedExponential("5ms", "10ms")
STEPS = 4
ROUNDING_S = 1e-9


def both_worlds(strategy, workers=3, steps=STEPS, task=None, **given):
    given = {"workers": workers, "compute": TIMES, "link": LINK, "threads": 1} | given
    task = a_task() if task is None else task
    return [pl.train(task, strategy, world(**given), steps=steps) for world in (pl.Local, pl.Simulated)]


def lengths_s(run, rank, kind=Kind.COMPUTE):
    spans = run.trace.spans[rank].of(kind)
    return spans["end_s"] - spans["start_s"]


# Times


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("all-reduce", {"slow": {1: 0.5, 2: 3.0}}),
        ("sync", {"delay": {0: pl.times.Exponential("5ms")}}),
        pytest.param("all-reduce", {"link": "shared-memory"}, marks=pytest.mark.slow),
        pytest.param("decentralized", {"link": "shared-memory", "slow": {0: 2.0}}, marks=pytest.mark.slow),
    ],
)
def test_no_gradient_is_shorter_than_the_simulators_and_the_weights_are_its_own(strategy, given):
    box, predicted = both_worlds(strategy, **given)
    for rank in range(3):
        drawn_s = lengths_s(predicted, rank)
        assert len(drawn_s) == STEPS
        assert (lengths_s(box, rank) >= drawn_s - ROUNDING_S).all()
    assert torch.equal(box.parameters, predicted.parameters)
    assert [record.loss for record in box.history] == [record.loss for record in predicted.history]


def test_what_no_gradient_takes_is_not_waited_for():
    """A rank draws hours for its gradients, which are all cancelled.

    Cancelling ends the sleep; otherwise the test would hang.
    """
    cluster = pl.Local(
        workers=3, compute=pl.times.Constant("5ms"), link=LINK, slow={2: 200 * PATIENCE_S * 10}
    )
    run = pl.train(a_task(), "k-sync:k=2", cluster, steps=STEPS)
    assert run.steps == STEPS
    assert len(run.trace.spans[2].of(Kind.COMPUTE)) == 0
    assert len(run.trace.spans[2].of(Kind.CANCELLED)) >= 1


def test_a_bucket_is_not_seen_before_its_share_of_the_time():
    drawn_s = 0.2
    box, predicted = both_worlds(
        "all-reduce:algorithm=ring,bucket_mb=0.0001", steps=1, compute=pl.times.Constant(drawn_s)
    )
    assert torch.equal(box.parameters, predicted.parameters)
    first_sent_s, predicted_s = (
        run.trace.spans[0].of(Kind.SEND)["start_s"].min() for run in (box, predicted)
    )
    began_s = box.trace.spans[0].of(Kind.COMPUTE)["start_s"][0]
    assert predicted_s < drawn_s, "the first bucket is sent while the gradient is being computed"
    assert first_sent_s - began_s >= predicted_s - ROUNDING_S


def test_more_workers_than_cores_take_no_less_than_the_simulation_says():
    box, predicted = both_worlds("all-reduce", workers=8, compute=pl.times.Constant("50ms"))
    assert box.seconds >= predicted.seconds - ROUNDING_S


# Evaluation takes no time


def is_stopped(outputs, targets):
    return float(clock.stands())


@pytest.mark.parametrize(("compute", "expected"), [(pl.times.Constant("1ms"), 1.0), (None, 0.0)])
@pytest.mark.parametrize(
    "strategy", ["all-reduce", pytest.param("local-sgd:period=2", marks=pytest.mark.slow)]
)
def test_the_clock_of_an_emulated_run_stands_still_during_an_evaluation(strategy, compute, expected):
    task = a_task(test=(numbers(4, 4), numbers(4, 2)), metric=is_stopped)
    cluster = pl.Local(workers=2, compute=compute, link=LINK)
    run = pl.train(task, strategy, cluster, steps=2, evaluate_every=1)
    assert [record.metric for record in run.history] == [expected] * 2


def stops_for_good(outputs, targets):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0.0


def test_nobody_waits_for_ever_for_a_clock_that_does_not_go_on():
    task = a_task(test=(numbers(4, 4), numbers(4, 2)), metric=stops_for_good)
    cluster = pl.Local(workers=2, compute=pl.times.Constant("5ms"), link=LINK, deadline_s=1.0)
    with raised(DeadlineError, culprit=0, view=has("rank 0", "stopped")):
        pl.train(task, "all-reduce", cluster, steps=3, evaluate_every=1)


# Reports


def test_a_run_says_what_was_emulated_and_which_gradients_did_not_fit(caplog):
    cluster = pl.Local(workers=2, compute=pl.times.Constant(0), link=LINK)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = pl.train(a_task(), "all-reduce", cluster, steps=STEPS)
    assert run.cluster == f"2 local workers (emulated: compute {cluster.compute}, link {LINK})"
    assert run.environment["emulated"] == f"compute {cluster.compute}, link {LINK}"
    said = run.environment["overruns"]
    assert said.startswith(
        f"{2 * STEPS} of {2 * STEPS} gradients took longer here than the time drawn for them"
    )
    assert said.endswith("Use longer times in compute, or fewer workers")
    assert said in caplog.messages


@pytest.mark.parametrize(("excess_s", "is_said"), [(0.0, False), (0.09, False), (0.11, True)])
def test_gradients_that_did_not_fit_are_told_of_where_they_matter(excess_s, is_said):
    """Of 10 s of computing."""
    recorder = Recorder(0, "worker")
    recorder.add(Kind.COMPUTE, 0.0, 10.0, -1, 0, 0)
    outcome = Outcome(rank=0, overruns=int(excess_s > 0), overrun_s=excess_s, spans=recorder.pack())
    note_emulation("compute", [outcome], outcome)
    assert outcome.facts[EMULATED] == "compute"
    assert (OVERRUNS in outcome.facts) == is_said


def test_a_run_whose_machines_are_real_says_nothing_of_the_kind():
    run = pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
    assert not {"emulated", "overruns"} & set(run.environment)


def test_what_is_said_outlives_saving(tmp_path):
    run = pl.train(a_task(), "single", pl.Local(workers=1, compute=pl.times.Constant(0)), steps=1)
    run.save(tmp_path)
    loaded = pl.Run.load(tmp_path)
    assert loaded.environment["emulated"] == "compute 0 s"
    assert loaded.environment["overruns"] == run.environment["overruns"]


# The rest of the cluster


@pytest.mark.parametrize("link", [LINK, "shared-memory"])
def test_auto_means_in_the_box_what_it_means_in_the_simulation(link):
    sizes = [2**10, 2**17, 2**24]

    async def program(ctx):
        chosen = [
            choose_algorithm(ctx.net, size, for_run=for_run) for size in sizes for for_run in (True, False)
        ]
        return chosen

    for workers in (2, 3, 4):
        box, predicted = (
            pl.run_program(program, cluster).results
            for cluster in (
                pl.Local(workers=workers, compute=TIMES, link=link),
                simulated(workers, compute=TIMES, link=link),
            )
        )
        assert box == predicted


def test_what_is_no_distribution_is_refused():
    with refused("compute", 0.01, bound=has("pl.times")):
        pl.Local(compute=0.01)


def test_a_rank_may_be_quicker_than_the_others_where_all_are_emulated():
    assert pl.Local(compute=TIMES, slow={0: 0.5}).slow == {0: 0.5}
    with refused("slow[0]", 0.5, bound=has(1)):
        pl.Local(slow={0: 0.5})


def test_draws_differ_by_seed_as_the_simulators_do():
    given = {"workers": 1, "compute": TIMES, "threads": 1}
    drawn = [
        lengths_s(pl.train(a_task(), "single", pl.Simulated(**given), steps=2, seed=seed), 0)
        for seed in (1, 2)
    ]
    slept = [
        lengths_s(pl.train(a_task(), "single", pl.Local(**given), steps=2, seed=seed), 0) for seed in (1, 2)
    ]
    assert not np.array_equal(*drawn)
    assert all((real_s >= drawn_s - ROUNDING_S).all() for real_s, drawn_s in zip(slept, drawn, strict=True))
