"""Models that a simulation builds for a job: for its ranks, for measurements, and for counting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from paceline.clusters.base.job import Job
from paceline.costs.counted import Counted, Operations
from paceline.costs.devices import Device
from paceline.costs.prices import Pricing
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.cutting.counting import Count
from paceline.model.cutting.layers import few_samples
from paceline.model.cutting.whole import count_model, without_data
from paceline.model.engines.shape_model import ShapeModel
from paceline.model.holding import Holding
from paceline.model.replica import Replica
from paceline.task.loops import copied


@dataclass(frozen=True, eq=False)
class KnownModel:
    """Shapes and prices of a model that several runs share. These runs compute nothing."""

    shapes: ShapeModel
    pricing: Pricing


def build_model(job: Job) -> nn.Module:
    """Build the model of one rank."""
    assert job.task is not None
    model = job.task.model
    # Copying a model takes less time than building one.
    return copied(model) if isinstance(model, nn.Module) else job.task.build_model(job.seed)


def whole_replica(job: Job, rank: int = 0) -> Replica:
    """Build the whole model of a rank, or for measurements."""
    assert job.task is not None
    replica = Replica.of(job.task, build_model(job), seed=job.seed, rank=rank, autocast=job.autocast)
    replica.build()
    return replica


def replica_maker(
    job: Job, *, computes: bool, known: KnownModel | None = None
) -> Callable[[int], Replica | None]:
    """Return a function that builds the model of a rank.

    With `computes` False the models have shapes only, which are those of one model.
    """
    task = job.task
    if task is None:
        return lambda _rank: None
    if computes:
        return lambda rank: whole_replica(job, rank)
    module: Any = task.model
    shapes = ShapeModel(task, module.to("meta")) if known is None else known.shapes
    return lambda _rank: Replica.of_shapes(shapes)


def counted_prices(device: Device, job: Job, samples: Samples, batches: GlobalBatches) -> Counted:
    """Return prices from operations, which are counted when they are first needed."""
    recompute = job.task is not None and job.task.recompute
    return Counted(device, functools.cache(lambda: count_operations(job, samples, batches)), recompute)


def count_operations(job: Job, samples: Samples, batches: GlobalBatches) -> Operations:
    """Count the operations of a forward pass of one sample."""
    assert job.task is not None
    few = without_data(few_samples(samples, batches.slice(0, 0, 1)))
    module = build_model(job).to("meta")
    count = count_model(job.task, module, few)
    return operations_of(count, Holding.of(module, reduction_dtype=job.task.gradient_dtype))


def operations_of(count: Count, holding: Holding) -> Operations:
    """Return what was counted as operations to price."""
    gradient_bytes = count.weight_bytes * holding.gradient_ratio
    return Operations(count.flops, count.moved_bytes, count.launches, count.weight_bytes, gradient_bytes)
