"""A Ray cluster with processes that are reused from run to run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from paceline.clusters.base.job import Cluster, Consult, Job
from paceline.clusters.base.outcome import Outcome
from paceline.clusters.ray.fleet import Fleet
from paceline.runs.run import Progress

if TYPE_CHECKING:
    from paceline.clusters.ray.ray import Ray


class HeldRay(Cluster):
    """A cluster that lasts for a `with` block. After a failed run, or for more ranks, new processes are started."""

    def __init__(self, cluster: Ray) -> None:
        self.cluster = cluster
        self._stack = contextlib.ExitStack()
        self._fleet: Fleet | None = None

    def __enter__(self) -> HeldRay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def workers(self) -> int:
        return self.cluster.workers

    def run(
        self,
        job: Job,
        progress: Callable[[Progress], None] | None = None,
        consult: Consult | None = None,
    ) -> list[Outcome]:
        self.cluster.check(job)
        fleet = self._fleet
        if fleet is None or fleet.ranks < job.ranks:
            self._end()
            fleet = self._fleet = self._stack.enter_context(Fleet(self.cluster, job.ranks))
        try:
            outcomes = fleet.run(job, progress, consult)
        except BaseException:
            self._end()
            raise
        if not fleet.is_whole:
            self._end()
        return outcomes

    def _end(self) -> None:
        self._fleet = None
        self._stack.close()

    def __str__(self) -> str:
        return str(self.cluster)
