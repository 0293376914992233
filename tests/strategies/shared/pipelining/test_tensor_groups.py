"""Joint work of the ranks of a tensor group."""

import pytest
import torch
from tasks import simulated
from tensor_models import model_task

import paceline as pl


def test_parameters_that_are_not_split_count_once_in_the_norm_and_stay_equal():
    def optimizer(params):
        return torch.optim.SGD(params, lr=1.0)

    for workers in (2, 4):
        task = model_task("gated", optimizer=optimizer, clip_norm=1e-3)
        run = pl.train(task, "tensor", simulated(workers), steps=1)
        moved = run.parameters - pl.train(task, "single", simulated(1), steps=1).parameters
        assert moved.abs().max() < 1e-15
        change = torch.cat([each.reshape(-1) for each in task.build_model(0).state_dict().values()]).sub(
            torch.cat([each.reshape(-1) for each in run.state.values()])
        )
        assert change.norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_a_group_without_samples_takes_part_in_the_update():
    task = model_task("gated", batch_size=1)
    expected = pl.train(task, "single", simulated(1), steps=3)
    run = pl.train(task, "tensor:size=2", simulated(4), steps=3)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)
