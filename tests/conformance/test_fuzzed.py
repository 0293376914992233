"""Every strategy in processes that sleep at random wherever the order of operations can matter."""

import pytest
import torch
from conformance.cases import REPRODUCIBLE, SPECS, one_in
from tasks import simulated
from torch import nn

import paceline as pl
from paceline.links.fuzz import VARIABLE
from paceline.links.memory.lending import LEAST_BYTES
from paceline.testing.checks import check_trains
from paceline.testing.tasks import odd_task

STEPS = 4


def wide_task():
    """A model with messages that are read in place, and with small gradients, so that stale ones are harmless."""
    task = odd_task(
        torch.float64,
        model=lambda: nn.Sequential(nn.Linear(13, 700), nn.ReLU(), nn.Linear(700, 3)).double(),
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-6),
    )
    assert sum(parameter.nbytes for parameter in task.build_model(0).parameters()) > LEAST_BYTES
    return task


@pytest.mark.parametrize(("seed", "spec"), one_in(3, enumerate(SPECS)))
def test_a_strategy_does_not_depend_on_when_its_ranks_get_to_run(monkeypatch, seed, spec):
    monkeypatch.setenv(VARIABLE, str(seed))
    task = wide_task()
    run = check_trains(spec, pl.Local(workers=3, slow={1: 3.0}, threads=1), task, STEPS)
    if spec in REPRODUCIBLE:
        alike = pl.train(task, spec, simulated(3, threads=1), steps=STEPS)
        assert torch.equal(run.parameters, alike.parameters)
