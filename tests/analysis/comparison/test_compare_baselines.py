import pytest
from refusals import refused, unknown

import paceline as pl
from paceline.analysis.comparison.compare import BASELINES, baseline_trainers


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_trains_by_the_words_of_train(name):
    assert callable(baseline_trainers(name, pl.Local())[name])


def test_no_baseline_is_no_trainer():
    assert baseline_trainers((), pl.Simulated(workers=2)) == {}


def test_an_unknown_baseline_is_refused():
    with unknown("against", "dpd", nearest="ddp"):
        baseline_trainers(["dpd"], pl.Local())


@pytest.mark.parametrize("cluster", [pl.Simulated(workers=2), pl.Local(workers=2, link=pl.Link("1Gbps"))])
def test_a_baseline_needs_real_workers_and_their_memory(cluster):
    with refused("against", str(cluster)):
        baseline_trainers(["ddp"], cluster)
