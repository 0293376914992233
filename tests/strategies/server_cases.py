"""What the tests of the parameter-server family share: runs without mathematics, and a task that counts gradients."""

from functools import cache

import numpy as np
import torch
from torch import nn

import paceline as pl
from paceline.replica.batches import GlobalBatches
from paceline.trace import Kind

EXPONENTIAL = pl.times.Exponential(1.0)
SHIFTED = pl.times.ShiftedExponential(1.0, 1.0)
PARETO = pl.times.Pareto(1.0, 4.0)

VARIANTS = (
    "sync",
    "k-sync:k=2",
    "k-batch-sync:k=2",
    "async",
    "k-async:k=2",
    "k-batch-async:k=2",
    "ssp:staleness=1",
)
"""Every variant, as it may run on three workers or more."""


def free(workers, times=EXPONENTIAL, **changes):
    """A simulated cluster on which communication costs nothing."""
    return pl.Simulated(**({"workers": workers, "compute": times, "link": pl.Link.ideal()} | changes))


def spec_of(variant, k=None):
    return variant if k is None else f"{variant}:k={k}"


@cache
def timed(spec, workers, times=EXPONENTIAL, steps=1000, seed=1):
    """A run without mathematics, where communication costs nothing."""
    task = pl.Task(
        model=lambda: nn.Linear(1, 1),
        data=(torch.zeros(4096, 1), torch.zeros(4096, 1)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=16,
    )
    return pl.train(task, spec, free(workers, times, math="none"), steps=steps, seed=seed)


def mean_of(histogram):
    return sum(value * count for value, count in histogram.items()) / sum(histogram.values())


def spans_of(run, kind, role="worker"):
    """The spans of a kind, rank by rank."""
    return [each.of(kind) for each in run.trace.spans if each.role == role]


def count_spans(run, kind, role="worker"):
    return sum(len(spans) for spans in spans_of(run, kind, role))


def lengths_s(spans):
    return spans["end_s"] - spans["start_s"]


class Counter(nn.Module):
    """A parameter for each sample. The mean output's gradient is 1/n for each of the n samples of a batch."""

    def __init__(self, samples):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, numbers):
        return -self.counts[numbers]


class Ledger:
    """Which gradients a run applied, read from the weights of a model that counts how often each sample was used.

    No sample comes twice in a run, so each belongs to one gradient: that of a worker and a step.
    """

    PER_WORKER = 2
    SAMPLES = 4000

    def __init__(self, spec, cluster, *, steps, seed=0):
        self.workers = cluster.workers
        self.batch_size = self.PER_WORKER * self.workers
        self.seed = seed
        numbers = torch.arange(self.SAMPLES)
        task = pl.Task(
            model=lambda: Counter(self.SAMPLES),
            data=(numbers, numbers),
            loss=lambda output, _: output.mean(),
            optimizer=lambda params: torch.optim.SGD(params, lr=1.0),
            batch_size=self.batch_size,
        )
        self.run = pl.train(task, spec, cluster, steps=steps, seed=seed)

    def applied(self, k):
        """How often each gradient was applied, by worker and step, in a run whose updates are of k gradients."""
        counts = (self.run.parameters * (k * self.PER_WORKER)).numpy()
        batches = GlobalBatches(self.SAMPLES, self.batch_size, self.seed)
        table = np.zeros((self.workers, self.SAMPLES // self.batch_size))
        for worker, step in np.ndindex(*table.shape):
            ours = counts[batches.slice(step, worker, self.workers).indices]
            np.testing.assert_allclose(ours, ours[0], atol=1e-9, err_msg="a gradient was applied in part")
            table[worker, step] = ours[0]
        rounded = table.round()
        np.testing.assert_allclose(table, rounded, atol=1e-9, err_msg="a gradient was applied with another weight")
        return rounded.astype(int)

    def computed(self):
        """How many gradients each worker computed to the end."""
        return np.array([len(spans) for spans in spans_of(self.run, Kind.COMPUTE)])
