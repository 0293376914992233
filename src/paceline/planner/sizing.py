"""Clusters for a plan: the user's cluster as a simulation, with any number of its workers."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.clusters.base.job import Cluster
from paceline.clusters.local.local import TCP, Local
from paceline.clusters.simulated.measured_once import measuring_once
from paceline.clusters.simulated.simulated import Simulated
from paceline.costs.calibration import SHARED_MEMORY, Calibration
from paceline.costs.description import ClusterDescription
from paceline.costs.description_files import load_cluster
from paceline.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCluster:
    """The cluster of a plan."""

    given: Cluster | ClusterDescription
    simulated: Simulated
    price_per_hour: float | None = None
    """Price of one host. None if unknown."""
    note: str = ""
    """How this machine was calibrated. Empty if it was not needed."""

    @classmethod
    def of(cls, given: object, calibrated: Callable[[Local], Calibration]) -> PlannedCluster:
        """Return the cluster of a plan, given a cluster, a description or its name.

        `calibrated` returns the calibration of this machine. It is called for local workers without given times.
        """
        if isinstance(given, str | os.PathLike):
            given = load_cluster(given)
        if isinstance(given, ClusterDescription):
            math = "real" if given.device is None and given.compute is None else "none"
            simulated = Simulated.of(given, math=math)
            return cls(given=given, simulated=_measured_once(simulated), price_per_hour=given.price_per_hour)
        if isinstance(given, Simulated):
            if given.faults:
                raise ConfigurationError(
                    "cluster", "must have no faults", given, "plan without them, then simulate"
                )
            simulated = dataclasses.replace(given, math="real" if given.measures else "none")
            return cls(given=given, simulated=_measured_once(simulated))
        if isinstance(given, Local):
            return _local(given, calibrated)
        remedy = 'give pl.Simulated(…), pl.Local(…), pl.load_cluster(…) or a name such as "dgx-a100"'
        raise ConfigurationError("cluster", "must be a cluster that can be simulated", given, remedy)

    @property
    def workers(self) -> int:
        return self.simulated.workers

    @property
    def per_host(self) -> int:
        """Largest number of ranks on one host."""
        return max(Counter(self.simulated.fabric.place(self.workers, self.workers)).values())

    def resized(self, workers: int) -> Simulated:
        """Return the simulation with the first `workers` ranks."""
        return resized(self.simulated, workers)

    def hosts(self, workers: int) -> int:
        """Return the number of hosts that the first `workers` ranks use."""
        return self.resized(workers).fabric.count


def _local(given: Local, calibrated: Callable[[Local], Calibration]) -> PlannedCluster:
    if given.compute is not None:
        return PlannedCluster(given=given, simulated=_as_simulated(given))
    here = calibrated(given)
    words: dict[str, Any] = {"calibration": here, "math": "none"}
    simulated = dataclasses.replace(_as_simulated(given), **words)
    return PlannedCluster(given=given, simulated=simulated, note=here.name)


def _measured_once(cluster: Simulated) -> Simulated:
    found = measuring_once(cluster)
    assert isinstance(found, Simulated)
    return found


def _as_simulated(cluster: Local) -> Simulated:
    """Return the simulation of local workers. Workers that share cores take turns."""
    words: dict[str, Any] = {
        name: getattr(cluster, name)
        for name in (
            "workers",
            "compute",
            "delay",
            "slow",
            "slow_links",
            "threads",
            "card",
            "oversubscription",
            "order",
        )
    }
    if cluster.hosts is not None:
        words |= {"hosts": cluster.hosts, "inside": cluster.inside}
    if cluster.compute is not None:
        link = SHARED_MEMORY if cluster.link == TCP else cluster.link
        return Simulated(math="none", link=link, **words)
    return Simulated(link=cluster.link, **words)


def resized(cluster: Simulated, workers: int) -> Simulated:
    """Return the cluster with its first `workers` ranks.

    Given times are for a gradient of one slice of the batch. With fewer workers the slices are larger.
    """
    if workers == cluster.workers:
        return cluster
    places = cluster.fabric.place(cluster.workers, cluster.workers)[:workers]
    counts = tuple(Counter(places).values())
    several = len(counts) > 1
    factor = cluster.workers / workers if cluster.compute is not None else 1.0
    slow = {rank: cluster.slow.get(rank, 1.0) * factor for rank in range(workers)}
    delay = cluster.delay
    if isinstance(delay, dict):
        delay = {rank: times for rank, times in delay.items() if rank < workers} or None
    is_cyclic = cluster.order == "cyclic"
    return dataclasses.replace(
        cluster,
        workers=workers,
        hosts=(len(counts) if is_cyclic or len(set(counts)) == 1 else counts) if several else 1,
        inside=cluster.inside if several or cluster.hosts == 1 else cluster.memory,
        card=cluster.card if several else None,
        oversubscription=cluster.oversubscription if several else 1.0,
        slow={rank: value for rank, value in slow.items() if value != 1},
        delay=delay,
        slow_links={pair: link for pair, link in cluster.slow_links.items() if max(pair) < workers},
    )


def with_workers(cluster: Cluster | None, workers: int) -> Cluster:
    """Return a cluster with this number of workers. None for workers on this machine."""
    if cluster is None:
        return Local(workers=workers)
    if cluster.workers == workers:
        return cluster
    if isinstance(cluster, Simulated) and cluster.workers > workers:
        return resized(cluster, workers)
    if isinstance(cluster, Local) and cluster.workers > workers:
        return _resized_local(cluster, workers)
    bound = f"must have the {workers} workers of the plan"
    raise ConfigurationError("cluster", bound, str(cluster), f"give a cluster of {workers} workers")


def _resized_local(cluster: Local, workers: int) -> Local:
    """Return the first `workers` local workers."""
    if cluster.compute is None and cluster.hosts is None:
        return dataclasses.replace(
            cluster,
            workers=workers,
            slow={rank: factor for rank, factor in cluster.slow.items() if rank < workers},
            slow_links={pair: link for pair, link in cluster.slow_links.items() if max(pair) < workers},
        )
    small = resized(_as_simulated(cluster), workers)
    names = ("workers", "slow", "delay", "slow_links", "card", "oversubscription")
    changes: dict[str, Any] = {name: getattr(small, name) for name in names}
    if cluster.hosts is not None:
        changes |= {"hosts": small.hosts, "inside": small.inside}
    return dataclasses.replace(cluster, **changes)
