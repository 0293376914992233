import pytest
from tasks import a_task, simulated

import paceline as pl
from paceline.analysis.comparison.alone import as_seen_alone


def test_a_given_time_of_a_slice_is_multiplied_by_the_workers():
    cluster = simulated(4, slow={0: 2.0, 3: 9.0})
    run = pl.train(a_task(), "single", as_seen_alone(cluster), steps=5)
    assert run.step_seconds == pytest.approx(0.01 * 4 * 2)
    assert run.cluster == str(cluster)


def test_without_mathematics_it_is_the_same():
    run = pl.train(a_task(), "single", as_seen_alone(simulated(4, math="none")), steps=5)
    assert run.step_seconds == pytest.approx(0.04)
    assert not run.state


def test_an_emulated_worker_alone_takes_as_many_times_as_long_too():
    cluster = pl.Local(workers=4, compute=pl.times.Constant("5ms"), slow={0: 2.0})
    run = pl.train(a_task(), "single", as_seen_alone(cluster), steps=2)
    assert run.step_seconds >= 0.005 * 4 * 2
    assert run.cluster == str(cluster)


@pytest.mark.parametrize("cluster", [pl.Local(workers=2), pl.Simulated(workers=2)])
def test_what_is_timed_needs_no_factor(cluster):
    assert as_seen_alone(cluster) is cluster
