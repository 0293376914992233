"""A simulation computes in the driver's process. When the run is deleted, the models of its ranks are freed."""

import gc

from conformance.cases import SPECS
from tasks import a_task, perceptron, simulated
from torch import nn

import paceline as pl


class OfStrategy(nn.Sequential):
    """A model that stores the name of the strategy that trains it. Its copies do too."""

    def __init__(self, spec):
        super().__init__(*perceptron())
        self.spec = spec


def test_no_rank_keeps_its_model_when_a_simulation_is_over():
    for spec in SPECS:
        pl.train(a_task(model=OfStrategy(spec)), spec, simulated(2), steps=2)
    gc.collect()
    assert {each.spec for each in gc.get_objects() if type(each) is OfStrategy} == set()
