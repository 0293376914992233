"""Measurement of one cell of the table: train a model by a strategy, and compare the weights."""

from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import paceline as pl
from paceline.data.samples import Samples
from paceline.errors import PacelineError
from paceline.model.cutting.layers import Layers
from paceline.task.calls import loss_of
from paceline.testing.reference import train_plainly
from paceline.testing.worlds import WORLDS
from zoo.rows import MORE, ROWS

MODELS = ROWS | MORE
STEPS, STEPS_TO_LEARN = 2, 12
EQUAL, TRAINS = "equal", "trains"


class Column:
    """A strategy of the table."""

    def __init__(self, spec, workers, slices, *, synchronous=True):
        self.spec = spec
        self.workers = workers
        self.slices = slices
        """Slices of a batch that pass through the model separately: BatchNorm normalises each of them."""
        self.is_synchronous = synchronous


COLUMNS = {
    "all-reduce": Column("all-reduce", 2, 2),
    "async": Column("async", 2, 2, synchronous=False),
    "local-sgd": Column("local-sgd:period=2", 2, 2, synchronous=False),
    "zero 1": Column("zero:stage=1", 2, 2),
    "zero 2": Column("zero:stage=2", 2, 2),
    "zero 3": Column("zero:stage=3", 2, 2),
    "layers": Column("layers", 2, 1),
    "pipeline": Column("pipeline:microbatches=2", 2, 2),
    "tensor": Column("tensor", 2, 1),
    "hybrid": Column("hybrid:data=2,pipeline=2,tensor=2,zero=1,microbatches=2", 8, 4),
}


@contextmanager
def traced_once():
    """Trace each model once for all strategies with equal segments. A trace has no parameters."""
    original, found = vars(Layers)["of"], {}

    def of(cls, task, module, batch, **options):
        shapes = tuple(leaf.shape for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
        key = type(module), str(module), shapes, *sorted(options.items())
        if key not in found:
            found[key] = original.__func__(cls, task, module, batch, **options)
        return found[key]

    Layers.of = classmethod(of)
    try:
        yield
    finally:
        Layers.of = original


def measure_row(row, columns=COLUMNS):
    """Return the cells of a row."""
    with traced_once():
        return {column: measure(row, column) for column in columns}


def measure(row, column, world="simulated"):
    """Return the cell: equal, trains, or the code and the reason of the refusal."""
    strategy = COLUMNS[column]
    task = MODELS[row].task()
    try:
        if strategy.is_synchronous:
            return _compare(row, task, strategy, world)
        return _learn(row, task, strategy, world)
    except PacelineError as error:
        return refusal_of(error)


def refusal_of(error):
    """Return the code and the cause of a refusal, without values that change from run to run."""
    if not hasattr(error, "bound"):
        return f"{error.code}: {type(error).__name__}"
    value = "" if "0x" in repr(error.value) else f" (got {error.value!r})"
    return f"{error.code}: {error.argument} {error.bound}{value}"


def _compare(row, task, strategy, world):
    run = pl.train(task, strategy.spec, WORLDS[world](strategy.workers), steps=STEPS)
    expected = _expected(row, strategy.slices)
    moved = (expected - _start(task)).abs().max()
    tolerance = MODELS[row].tolerance
    assert moved > 1e5 * tolerance, f"{row}: the steps hardly change the weights"
    difference = (run.parameters - expected).abs().max()
    return EQUAL if difference <= tolerance else f"differs by {difference:.0e}"


@cache
def _expected(row, slices):
    """Return the weights of `single`; with BatchNorm, those of a plain loop that passes slice by slice."""
    task = MODELS[row].task()
    if MODELS[row].uses_batch_norm:
        return train_plainly(task, STEPS, workers=slices)[0]
    return pl.train(task, "single", WORLDS["simulated"](1), steps=STEPS).parameters


def _learn(row, task, strategy, world):
    """Check that one worker gives the weights of `single`, and that two workers reduce the loss."""
    alone = pl.train(task, strategy.spec, WORLDS[world](1), steps=STEPS)
    if (alone.parameters - _expected(row, 1)).abs().max() > MODELS[row].tolerance:
        return "differs with one worker"
    run = pl.train(task, strategy.spec, WORLDS[world](strategy.workers), steps=STEPS_TO_LEARN)
    if not torch.isfinite(run.parameters).all():
        return "not finite"
    if task.step is not None:  # two losses that work against each other need not fall
        return TRAINS
    return TRAINS if _loss(task, run.model) < _loss(task, task.build_model(0)) else "the loss does not fall"


def _loss(task, model):
    model.train()
    samples = Samples.of(task)
    return float(loss_of(task, model, samples.fetch(np.arange(samples.length))).detach())


def _start(task):
    model = task.build_model(0)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])
