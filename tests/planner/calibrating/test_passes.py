"""Passes through the parts of a model, measured here. No test depends on how fast they are."""

import torch
from torch import nn

import paceline as pl
from paceline.planner.calibrating.passes import pass_seconds


def task(**words):
    return pl.Task(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        data=(torch.zeros(64, 4), torch.zeros(64, 2)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=16,
        **words,
    )


def test_every_part_has_a_forward_and_a_backward_pass():
    found = pass_seconds(task(loss=nn.functional.mse_loss), workers=2, seed=0)
    assert found["ends"] == [1, 2, 3]
    assert len(found["forward_s"]) == len(found["backward_s"]) == 3
    assert min(*found["forward_s"], *found["backward_s"], found["gradient_s"]) > 0


def test_a_model_that_cannot_be_split_has_none():
    def step(model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    assert pass_seconds(task(step=step), workers=2, seed=0) == {}
