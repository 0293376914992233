"""Joint updates of ranks with different segments."""

import pytest
import torch
from segmented_models import gpt_task
from tasks import simulated

import paceline as pl
from paceline.strategies.shared.pipelining.program import names_in
from paceline.testing.checks import check_close


def adam(params):
    return torch.optim.Adam(params, lr=0.05, weight_decay=0.1)


@pytest.mark.parametrize("clip_norm", [pytest.param(None, marks=pytest.mark.slow), 0.01])
def test_a_tied_weight_learns_from_both_ends_and_counts_once_in_the_norm(clip_norm):
    task = gpt_task(optimizer=adam, clip_norm=clip_norm)
    expected = pl.train(task, "single", simulated(1), steps=5)
    run = pl.train(task, "pipeline:cuts=blocks.0+norm", simulated(3), steps=5)
    check_close(run.parameters, expected.parameters)
    assert torch.equal(run.state["head.weight"], run.state["tokens.weight"])


def test_names_of_cuts_stand_with_a_plus_between_them():
    assert names_in("") == ()
    assert names_in("blocks.1+norm") == ("blocks.1", "norm")
