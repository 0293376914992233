"""The models that a simulation makes of a job: of its ranks, to measure with, and to count."""

from __future__ import annotations

import copy

from torch import nn

from paceline.clusters.job import Job
from paceline.costs.counted import Operations
from paceline.replica.batches import GlobalBatches
from paceline.replica.pieces.cutting import few_samples
from paceline.replica.pieces.whole import count_model, without_data
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples

__all__ = ["build_model", "count_operations", "whole_replica"]


def build_model(job: Job) -> nn.Module:
    """The model of one rank."""
    assert job.task is not None
    model = job.task.model
    # A copy takes less time than a factory.
    return copy.deepcopy(model) if isinstance(model, nn.Module) else job.task.build_model(job.seed)


def whole_replica(job: Job) -> Replica:
    """The whole model, to measure with."""
    assert job.task is not None
    return Replica(job.task, build_model(job), seed=job.seed, autocast=job.autocast)


def count_operations(job: Job, samples: Samples, batches: GlobalBatches) -> Operations:
    """The operations of a forward pass of one sample."""
    assert job.task is not None
    few = without_data(few_samples(samples, batches.slice(0, 0, 1)))
    count = count_model(job.task, build_model(job).to("meta"), few)
    return Operations(count.flops, count.moved_bytes)
