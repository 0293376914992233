"""What limits the best configuration of a plan: seconds that would be saved if a resource had no limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline.clusters.simulated.simulated import Simulated
from paceline.costs.calibration import SHARED_MEMORY
from paceline.costs.link import Link
from paceline.errors import PacelineError
from paceline.planner.entry import Entry
from paceline.planner.estimate import GRADIENTS
from paceline.planner.predict import predicted
from paceline.planner.sizing import PlannedCluster, resized
from paceline.task.task import Task

COMPUTE, BUBBLE, MEMORY = "compute", "the bubble", "memory"
BETWEEN, INSIDE, CARD, STRAGGLERS = (
    "the links between hosts",
    "the links inside hosts",
    "the network cards",
    "the stragglers",
)
LINKS = "the links"


class Bottleneck(NamedTuple):
    """A resource, and the seconds of a batch that it costs."""

    name: str
    seconds: float
    share: float
    """Fraction of the time of a batch."""


def bottlenecks(
    task: Task, entry: Entry, cluster: PlannedCluster, rejected: Sequence[Entry]
) -> list[Bottleneck]:
    """Return the resources that cost the most, the largest first.

    For links and stragglers the step is predicted once more without their limits. Compute and the bubble are parts of
    the predicted step. The cost of memory is the time that the fastest configuration would save if it fitted.
    """
    whole_s = entry.batch_seconds
    saved = {name: whole_s - seconds for name, seconds in _without(task, entry, cluster)}
    parts, step_s = entry.prediction.parts, entry.prediction.step_seconds
    scale = whole_s / step_s if step_s else 0.0
    saved[COMPUTE] = parts.compute * scale
    saved[BUBBLE] = parts.bubble * scale
    faster = [each.batch_seconds for each in rejected if each.equals_single == entry.equals_single]
    saved[MEMORY] = whole_s - min(faster, default=whole_s)
    found = [Bottleneck(name, seconds, seconds / whole_s) for name, seconds in saved.items()]
    return sorted((each for each in found if each.share > 0.005), key=lambda each: -each.seconds)


def _without(task: Task, entry: Entry, cluster: PlannedCluster) -> Iterator[tuple[str, float]]:
    """Yield each resource, and the seconds of a batch without its limit."""
    given = dataclasses.replace(task, recompute=entry.recompute)
    steps = entry.batch_seconds / entry.prediction.step_seconds
    for name, changed in _unlimited(cluster.simulated, entry.workers):
        try:
            found = predicted(given, entry.strategy, changed, GRADIENTS)
        except PacelineError:
            continue
        yield name, steps * found.step_seconds


def _unlimited(cluster: Simulated, workers: int) -> Iterator[tuple[str, Simulated]]:
    """Yield copies of the cluster, each without one of its limits."""
    small = resized(cluster, workers)
    ideal = Link.ideal()
    if workers > 1 and small.link != SHARED_MEMORY:
        several = small.hosts != 1
        if several:
            free = dataclasses.replace(
                small, link=ideal, card=None, oversubscription=1.0, inside=small.memory
            )
            yield BETWEEN, free
            if small.card is not None:
                yield CARD, dataclasses.replace(small, card=None, oversubscription=1.0)
            if small.fabric.count < workers:
                yield INSIDE, dataclasses.replace(small, inside=ideal)
        else:
            inside = ideal if small.inside is not None else None
            yield LINKS, dataclasses.replace(small, link=ideal, inside=inside)
    if cluster.slow or cluster.delay is not None:
        yield STRAGGLERS, resized(dataclasses.replace(cluster, slow={}, delay=None), workers)
