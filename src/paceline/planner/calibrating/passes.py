"""Measurement of the passes through the parts of a model, on one rank."""

from __future__ import annotations

from typing import Any

from paceline.clusters.simulated.pass_timer import PassTimer
from paceline.costs.measured import median_s
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import PacelineError
from paceline.model.cutting.layers import Layers, few_samples
from paceline.model.replica import Replica
from paceline.task.task import Task

_MOST = 64
"""Number of segments. More have passes that are too short to measure."""


def pass_seconds(task: Task, workers: int, seed: int) -> dict[str, Any]:
    """Measure the passes of a worker's slice through each part of the model, as arguments of `PassShares.of`.

    Empty if the model cannot be split.
    """
    samples = Samples.of(task, seed)
    batches = GlobalBatches.of(task, samples, seed)
    batch = batches.slice(0, 0, workers)

    def replica() -> Replica:
        made = Replica.of(task, task.build_model(seed), seed=seed, rank=0, autocast=())
        made.build()
        return made

    try:
        layers = Layers.of(task, task.build_model(seed), few_samples(samples, batches.slice(0, 0, 1)))
        cut = layers.cut(1, finer=min(_MOST, layers.most))
        timer = PassTimer(replica, samples)
        segments = range(len(cut.segments))
        forward_s, backward_s = (
            [timer.seconds(cut, way, segment, batch) for segment in segments] for way in ("forward", "both")
        )
    except PacelineError:
        return {}
    whole = replica()
    gradient_s = median_s(lambda: whole.compute(batch, samples))
    return {
        "ends": list(cut.bounds[1:]),
        "forward_s": forward_s,
        "backward_s": backward_s,
        "gradient_s": gradient_s,
    }
