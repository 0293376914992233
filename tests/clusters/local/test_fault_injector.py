"""Faults of a local run: real signals to real processes."""

import pytest
from refusals import has, raised, refused
from tasks import a_task

import paceline as pl
from paceline.errors import PeerLost
from paceline.faults import Kill, Pause, Random, Slow

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
