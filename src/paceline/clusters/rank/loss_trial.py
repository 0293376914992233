"""Trial whether the loss is a mean over samples. Needed if a run sums gradients of parts of a batch."""

from __future__ import annotations

from paceline.clusters.base.job import Job
from paceline.model.loss_trial import request
from paceline.task.task import Task


def request_trial(job: Job, rank: int) -> None:
    """Request the trial on the last worker, unless the run computes each batch as a whole.

    The last worker has the model's outputs in every strategy: it holds the last stage of a pipeline.
    """
    task = job.task
    is_tried = (
        task is not None and task.loss is not None and not job.generations.first and _is_parted(job, task)
    )
    request(wanted=is_tried and rank == job.workers - 1)


def _is_parted(job: Job, task: Task) -> bool:
    """Return whether gradients of parts of a global batch are summed, judged by the strategy's parameters."""
    strategy, workers = job.strategy, job.workers
    if task.accumulate > 1:
        return True
    if hasattr(strategy, "microbatches"):
        return workers > 1 or strategy.microbatches not in (None, 1)
    # Layers and tensor: each group of workers computes whole batches.
    if getattr(strategy, "cuts_model", False):
        return workers > (getattr(strategy, "size", None) or workers)
    return workers > 1 and not hasattr(strategy, "partition")  # clients have batches of their own
