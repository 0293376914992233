"""The cluster as a lone worker has it.

A cluster with `compute`, simulated or emulated, takes that for every gradient, however many samples it is of: it is the
time of one worker's slice. `single` computes the gradient of the whole batch, so there it takes as many times as long
as there are workers. Without `compute` a simulation times that gradient itself, and real workers take what they take.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from paceline.clusters.job import Cluster, Consult, Job
from paceline.clusters.local.local import Local
from paceline.clusters.outcome import Outcome
from paceline.clusters.simulated.simulated import Simulated
from paceline.run import Progress

__all__ = ["as_seen_alone"]


def as_seen_alone(cluster: Cluster) -> Cluster:
    """The cluster on which `single` is to run."""
    if isinstance(cluster, (Simulated, Local)) and cluster.compute is not None:
        return _WholeBatches(cluster)
    return cluster


@dataclass(frozen=True, slots=True)
class _WholeBatches:
    """A cluster whose first worker computes gradients of whole batches."""

    cluster: Simulated | Local

    @property
    def workers(self) -> int:
        return self.cluster.workers

    @property
    def math(self) -> str:
        return getattr(self.cluster, "math", "real")

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        factor = self.cluster.stragglers.factor(0) * self.workers
        slowed = dataclasses.replace(self.cluster, slow={**self.cluster.slow, 0: factor})
        return slowed.run(job, progress, consult)

    def __str__(self) -> str:
        return str(self.cluster)
