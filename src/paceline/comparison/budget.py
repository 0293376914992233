"""How many steps each strategy gets, so that all see as many samples.

A step is one update. That of `all-reduce` takes a whole global batch, that of `async` one worker's slice of it; with
equally many steps, the one would see a fraction of the samples. How many a step takes is seen in a short simulation
without mathematics, so that no strategy needs to be known here.
"""

from __future__ import annotations

from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.costs import times
from paceline.costs.link import Link
from paceline.errors import TaskError
from paceline.replica.batches import GlobalBatches
from paceline.replica.samples import Samples
from paceline.task import Task
from paceline.training import train

__all__ = ["batches_per_step"]

_STEPS = 4
_SAME = 0.05
"""What differs less takes a whole batch; the last batch of an epoch may be smaller."""


def batches_per_step(task: Task, strategy: str | Strategy, workers: int) -> float:
    """How many global batches' worth of samples a step takes. 1 if a simulation does not tell."""
    cluster = Simulated(workers=workers, compute=times.Constant(1.0), link=Link.ideal(), math="none")
    try:
        run = train(task, strategy, cluster, steps=_STEPS)
    except TaskError:
        raise
    except Exception:  # it may be unable to run in virtual time, and yet run well elsewhere
        return 1.0
    samples = Samples.of(task)
    batches = GlobalBatches.of(task, samples, 0)
    batch = task.batch_size if samples.is_stream else batches.samples_per_epoch / batches.steps_per_epoch
    found = run.history[-1].samples / run.steps / batch if run.history else 0.0
    return 1.0 if found <= 0 or abs(found - 1) < _SAME else found
