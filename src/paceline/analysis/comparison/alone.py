"""The cluster for the strategy `single` in a comparison.

On a cluster with `compute` (simulated or emulated) every gradient takes that time, for any number of samples. It is the
time of one worker's slice. `single` computes the gradient of the whole batch, so its gradients take `workers` times as
long. Without `compute`, a simulation derives the time of a gradient from the measured time per sample, and real
workers take the real time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from paceline.clusters.base.job import Cluster, Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.local.local import Local
from paceline.clusters.simulated.simulated import Simulated
from paceline.runs.run import Progress


def as_seen_alone(cluster: Cluster) -> Cluster:
    """Return the cluster on which to run `single`."""
    if isinstance(cluster, (Simulated, Local)) and cluster.compute is not None:
        return _WholeBatches(cluster)
    return cluster


@dataclass(frozen=True, slots=True)
class _WholeBatches(Cluster):
    """A cluster in which the first worker computes gradients of whole batches."""

    cluster: Simulated | Local

    @property
    def workers(self) -> int:
        return self.cluster.workers

    @property
    def math(self) -> str:
        return self.cluster.math

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
