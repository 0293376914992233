import pytest

import paceline as pl
from paceline.comparison.baselines import BASELINES, baseline_trainers
from paceline.errors import ConfigurationError, UnknownNameError


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_trains_by_the_words_of_train(name):
    assert callable(baseline_trainers(name, pl.Local())[name])


def test_no_baseline_is_no_trainer():
    assert baseline_trainers((), pl.Simulated(workers=2)) == {}


def test_an_unknown_baseline_is_refused():
    with pytest.raises(
        UnknownNameError, match="against must be one of ddp, but got 'dpd'; did you mean 'ddp'"
    ):
        baseline_trainers(["dpd"], pl.Local())


@pytest.mark.parametrize("cluster", [pl.Simulated(workers=2), pl.Local(workers=2, link=pl.Link("1Gbps"))])
def test_a_baseline_needs_real_workers_and_their_memory(cluster):
    with pytest.raises(ConfigurationError, match="against needs local workers"):
        baseline_trainers(["ddp"], cluster)
