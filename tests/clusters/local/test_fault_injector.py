"""Faults of a local run: real signals to real processes."""

import pytest
from elastic import check_against_single, single
from refusals import has, raised, refused
from tasks import a_task

import paceline as pl
from paceline.errors import PeerLost
from paceline.faults import Cut, Kill, Pause, Random, Slow

STEPS = 6


@pytest.fixture(scope="module")
def undisturbed():
    return pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=STEPS)


@pytest.mark.parametrize(
    "fault", [Pause(1, step=2, seconds=0.5), Pause(1, at=0.0, seconds=0.5), Slow(1, 50, step=1, seconds=0.5)]
)
def test_a_paused_or_slow_rank_takes_time_and_changes_no_bit(fault, undisturbed):
    run = pl.train(a_task(), "all-reduce", pl.Local(workers=2, faults=[fault]), steps=STEPS)
    assert (run.parameters == undisturbed.parameters).all()
    assert isinstance(fault, Slow) or run.seconds > 0.4


@pytest.mark.parametrize("fault", [Kill(1, step=3), Kill(1, at=0.0), Random(mean="1us", seed=2)])
def test_a_killed_rank_ends_a_run_that_needs_it(fault):
    with raised(PeerLost, reason=has("SIGKILL")):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2, faults=[fault]), steps=3000)


def test_faults_that_the_run_cannot_have_are_refused():
    with refused("faults", 2, bound=has(1)):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2, faults=[Kill(2, step=1)]), steps=STEPS)
    with refused("faults", STEPS, bound=has(STEPS)):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2, faults=[Kill(1, step=STEPS)]), steps=STEPS)
    with refused("faults"):
        pl.Local(faults="kill")


def over_tcp(*faults, **changes):
    return pl.Local(**({"workers": 3, "link": "tcp", "faults": faults} | changes))


def test_a_network_that_is_cut_for_a_short_time_takes_time_and_changes_no_bit():
    undisturbed = pl.train(a_task(), "all-reduce", over_tcp(), steps=STEPS)
    run = pl.train(a_task(), "all-reduce", over_tcp(Cut([1, 2], at=0, seconds=0.5)), steps=STEPS)
    assert (run.parameters == undisturbed.parameters).all()
    assert run.seconds >= 0.5
    assert not run.lost


@pytest.mark.parametrize("restart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ranks_that_cannot_reach_the_driver_stop_and_the_others_continue(restart, caplog):
    cut = Cut([0, 2], at=0, seconds=600)
    machines = over_tcp(cut, workers=4, min_workers=2, deadline_s=1.0, restart=restart)
    run = pl.train(a_task(), "all-reduce", machines, steps=STEPS)
    check_against_single(run, single(0, STEPS))
    assert [rank for rank, _ in run.lost] == [0, 2]
    assert {rank for rank, _ in run.joined} <= ({0, 2} if restart else set())
    said = "rank 0 stops: it is cut off from the driver for 0.5 s"
    assert said in [record.getMessage() for record in caplog.records]


def test_a_run_that_needs_the_ranks_that_are_cut_off_ends():
    with raised(PeerLost, reason=has("0.5 s")):
        pl.train(a_task(), "all-reduce", over_tcp(Cut([1], at=0, seconds=600), deadline_s=1.0), steps=STEPS)


def test_shared_memory_cannot_be_cut():
    with refused("faults", "Cut", remedy=has("tcp")):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2, faults=[Cut([1], at=1)]), steps=STEPS)
