"""A cluster that divides runs into generations: programs end every few steps and start again."""

import dataclasses

from paceline.checkpoints.generations import GenerationPlan
from paceline.clusters.base.job import Cluster

__all__ = ["InGenerations", "course"]


class InGenerations(Cluster):
    """Another cluster, with a new generation after a number of steps."""

    def __init__(self, cluster, every):
        self._cluster, self._every = cluster, every

    @property
    def workers(self):
        return self._cluster.workers

    def run(self, job, *args, **options):
        generations = GenerationPlan(every=self._every)
        return self._cluster.run(dataclasses.replace(job, generations=generations), *args, **options)

    def __str__(self):
        return f"{self._cluster}, in generations"


def course(run):
    """Return the results of a run without its times. Servers also send their shards at the end of a generation."""
    history = [(r.step, r.loss, r.metric, r.samples, r.extra) for r in run.history]
    return {"history": history, "staleness": run.staleness, "lost": run.lost, "metrics": run.peer_metrics}
