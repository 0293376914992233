"""A small task for tests, and changes to it."""

import torch
from torch import nn

import paceline as pl


def numbers(*shape, seed=0, dtype=torch.float64):
    """Normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def samples(count=24, dtype=torch.float64):
    return numbers(count, 4, seed=1, dtype=dtype), numbers(count, 2, seed=2, dtype=dtype)


def perceptron(dtype=torch.float64):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


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


# One thread a rank in both worlds: the last bits of a sum may depend on how many share it, and by default that depends
# on the machine's cores.


def simulated(workers, **changes):
    """A simulated cluster in which a gradient takes 10 ms."""
    return pl.Simulated(**({"workers": workers, "compute": pl.times.Constant(0.01), "threads": 1} | changes))


WORLDS = {"local": lambda workers: pl.Local(workers=workers, threads=1), "simulated": simulated}
