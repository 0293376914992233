"""A small task for tests, and changes to it."""

import torch
from torch import nn

import paceline as pl
from paceline.testing.tasks import numbers, perceptron, samples
from paceline.testing.worlds import WORLDS, simulated

__all__ = ["WORLDS", "a_task", "a_wide_task", "numbers", "perceptron", "samples", "sgd", "simulated"]


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def a_task(**changes):
    given = {
        "model": perceptron,
        "data": samples(),
        "loss": nn.functional.mse_loss,
        "optimizer": sgd,
        "batch_size": 8,
    }
    return pl.Task(**(given | changes))


def a_wide_task():
    """Of 4 MB: the messages are too large for one chunk."""

    def model():
        return nn.Sequential(nn.Linear(4, 70_001), nn.ReLU(), nn.Linear(70_001, 2)).double()

    return a_task(model=model, optimizer=lambda params: torch.optim.SGD(params, lr=1e-6, momentum=0.9))
