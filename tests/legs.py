"""A cluster whose runs are parted into legs: programs end every few steps, and begin again."""

import dataclasses

from paceline.clusters.legs import Legs

__all__ = ["InLegs", "course"]


class InLegs:
    """Another cluster, with a leg every so many steps."""

    def __init__(self, cluster, every):
        self._cluster, self._every = cluster, every
        self.workers = cluster.workers

    def run(self, job, *args, **options):
        legs = Legs(every=self._every)
        return self._cluster.run(dataclasses.replace(job, legs=legs), *args, **options)

    def __str__(self):
        return f"{self._cluster}, in legs"


def course(run):
    """What a run came to, but for the time that it took; servers send their shards at the end of a leg too."""
    history = [(r.step, r.loss, r.metric, r.samples, r.extra) for r in run.history]
    return {"history": history, "staleness": run.staleness, "lost": run.lost, "metrics": run.peer_metrics}
