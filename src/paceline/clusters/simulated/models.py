"""Models that a simulation builds for a job: for its ranks, for measurements, and for counting."""

from __future__ import annotations

from torch import nn

from paceline.clusters.base.job import Job
from paceline.costs.counted import Operations
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.cutting.layers import few_samples
from paceline.model.cutting.whole import count_model, without_data
from paceline.model.replica import Replica
from paceline.task.loops import copied


def build_model(job: Job) -> nn.Module:
    """Build the model of one rank."""
    assert job.task is not None
    model = job.task.model
    # A copy takes less time than a factory.
    return copied(model) if isinstance(model, nn.Module) else job.task.build_model(job.seed)


def whole_replica(job: Job, rank: int = 0) -> Replica:
    """Build the whole model of a rank, or for measurements."""
    assert job.task is not None
    replica = Replica.of(job.task, build_model(job), seed=job.seed, rank=rank, autocast=job.autocast)
    replica.build()
    return replica


def count_operations(job: Job, samples: Samples, batches: GlobalBatches) -> Operations:
    """Count the operations of a forward pass of one sample."""
    assert job.task is not None
    few = without_data(few_samples(samples, batches.slice(0, 0, 1)))
    count = count_model(job.task, build_model(job).to("meta"), few)
    return Operations(count.flops, count.moved_bytes, count.launches)
