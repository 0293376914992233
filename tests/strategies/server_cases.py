"""Helpers for tests of parameter servers: runs without mathematics, and a task that counts gradients."""

import dataclasses
from functools import cache

import numpy as np
import torch
from torch import nn

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.strategies import parse
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
"""Every variant, with parameters for three workers or more."""


def free(workers, times=EXPONENTIAL, **changes):
    """A simulated cluster on which communication costs nothing."""
    return pl.Simulated(**({"workers": workers, "compute": times, "link": pl.Link.ideal()} | changes))


def spec_of(variant, k=None):
    return variant if k is None else f"{variant}:k={k}"


def with_servers(spec, servers):
    return f"{spec}{',' if ':' in spec else ':'}servers={servers}"


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
    """A parameter for each sample. Its value is the number of uses of that sample."""

    def __init__(self, samples):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, numbers):
        return -self.counts[numbers]


def negated_mean(output, _target):
    """Its gradient is 1/n for each of the n samples of a batch."""
    return output.mean()


class Level(nn.Module):
    """Parameters that are all alike, unless some are of one version and some of another."""

    def __init__(self, length):
        super().__init__()
        self.heights = nn.Parameter(torch.zeros(length, dtype=torch.float64))

    def forward(self, numbers):
        if (self.heights != self.heights[0]).any():
            raise AssertionError(f"parameters of several versions: {self.heights.unique().tolist()}")
        return -self.heights.mean() * torch.ones_like(numbers)


class Ledger:
    """Return a run and the gradients that it applied, read from the weights of a counting model.

    No sample is used twice in a run, so each belongs to the gradient of one worker and step.
    """

    SAMPLES_A_GRADIENT = 2

    def __init__(self, spec, cluster, *, k, steps, seed=0, gradients_a_worker=150):
        """`gradients_a_worker`: maximum number of gradients that a worker computes."""
        self.gradients_a_worker = gradients_a_worker
        self.shape = (gradients_a_worker, cluster.workers, self.SAMPLES_A_GRADIENT)
        self.batch_size = cluster.workers * self.SAMPLES_A_GRADIENT
        numbers = torch.arange(gradients_a_worker * self.batch_size)
        task = pl.Task(
            model=lambda: Counter(len(numbers)),
            data=(numbers, numbers),
            loss=negated_mean,
            optimizer=lambda params: torch.optim.SGD(params, lr=1.0),
            batch_size=self.batch_size,
        )
        self.k = k
        self.run = pl.train(task, spec, cluster, steps=steps, seed=seed)

    @property
    def applied(self):
        """Return how often each gradient was applied, by step and worker. Each counts as a k-th of its update."""
        assert max(self.computed) <= self.gradients_a_worker, (
            "some samples came twice: the ledger is too short"
        )
        batches = GlobalBatches(self.gradients_a_worker * self.batch_size, self.batch_size, self.run.seed)
        indices = np.stack([batches.indices(step) for step in range(self.gradients_a_worker)])
        counts = self.run.parameters.numpy()[indices.reshape(self.shape)] * self.k * self.SAMPLES_A_GRADIENT
        whole = counts[:, :, 0].round()
        np.testing.assert_allclose(counts, whole[:, :, None].repeat(self.shape[2], axis=2), atol=1e-9)
        return whole.astype(int)

    @property
    def computed(self):
        """How many gradients each worker computed to their ends."""
        return np.array([len(spans) for spans in spans_of(self.run, Kind.COMPUTE)])


class Wrapped:
    """Something with other attributes."""

    def __init__(self, inner, **changes):
        self._inner = inner
        vars(self).update(changes)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def keeping_receipts(ctx, receipts):
    """A context with a net that records the receives of its rank."""

    def recv(source, into=None, **options):
        receipt = ctx.net.recv(source, into, **options)
        receipts.setdefault(ctx.rank, []).append(receipt)
        return receipt

    return Wrapped(ctx, net=Wrapped(ctx.net, recv=recv))


def listening(spec):
    """A strategy in which workers record the received tensors and their memory."""
    receipts = {}
    strategy = parse(spec)

    async def worker(self, ctx):
        await type(strategy).worker(self, keeping_receipts(ctx, receipts))

    kind = type("Listened", (type(strategy),), {"worker": worker})
    return kind(**{f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)}), receipts
