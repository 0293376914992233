"""Trial whether the loss is a mean over samples. Needed if a run sums gradients of parts of a batch."""

from __future__ import annotations

from paceline.clusters.base.job import Job
from paceline.model.loss_trial import request


def request_trial(job: Job, rank: int) -> None:
    """Request the trial on the last worker, unless the run computes each batch as a whole.

    The last worker has the model's outputs in every strategy: it holds the last stage of a pipeline.
    """
    task = job.task
    can_try = task is not None and task.loss is not None and not job.generations.first
    request(wanted=can_try and rank == job.workers - 1 and _divides_batch(job))


def _divides_batch(job: Job) -> bool:
    accumulates = job.task is not None and job.task.accumulate > 1
    return accumulates or job.declared.divides_batch(job.workers)
