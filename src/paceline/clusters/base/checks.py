"""Argument checks shared by all clusters."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from paceline.clusters.base.job import Cluster, Job
from paceline.costs.stragglers import Stragglers
from paceline.costs.times import Times
from paceline.errors import ConfigurationError
from paceline.faults import KINDS, Cut, Fault, Join, Random

MAX_THREADS = 1024


def check_workers(workers: object, at_most: int) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= at_most:
        raise ConfigurationError(
            "workers",
            f"must be a whole number from 1 to {at_most}",
            workers,
            "each worker is one process or node",
        )


def check_cluster(cluster: object) -> None:
    if isinstance(cluster, type) or not isinstance(cluster, Cluster):
        raise ConfigurationError("cluster", "must be a cluster", cluster, "such as pl.Local(workers=4)")


def check_evaluate_every(every: object) -> None:
    counts = isinstance(every, int) and not isinstance(every, bool) and every >= 1
    if every is not None and not counts:
        raise ConfigurationError("evaluate_every", "must be a whole number of at least 1", every)


def check_flag(argument: str, value: object, *, optional: bool = False) -> None:
    if not isinstance(value, bool) and not (optional and value is None):
        bound = "must be True, False or None" if optional else "must be True or False"
        raise ConfigurationError(argument, bound, value, "omit it for the default")


def check_progress(progress: object) -> None:
    if progress is not None and not callable(progress):
        remedy = "give a function of one argument, or omit it"
        raise ConfigurationError("progress", "must be a function", progress, remedy)


def check_compute(compute: object) -> None:
    if compute is not None and not isinstance(compute, Times):
        remedy = "write pl.times.Constant(0.01)"
        raise ConfigurationError("compute", "must be a distribution of pl.times", compute, remedy)


def check_faults(faults: object) -> None:
    if not isinstance(faults, Sequence) or not all(isinstance(fault, KINDS) for fault in faults):
        remedy = "write faults=[pl.faults.Kill(1, step=3)]"
        raise ConfigurationError("faults", "must be a sequence of pl.faults", faults, remedy)


def check_faults_fit(faults: Sequence[Fault | Random], ranks: int, steps: int) -> None:
    """Raise an error for ranks or steps that a run of `ranks` ranks and `steps` steps does not have."""
    for fault in faults:
        if isinstance(fault, Random):
            continue
        for rank in fault.side if isinstance(fault, Cut) else (fault.rank,):
            if rank >= ranks:
                remedy = f"this run has {ranks} rank{'s' if ranks > 1 else ''}"
                raise ConfigurationError("faults", f"must name ranks 0 to {ranks - 1}", rank, remedy)
        if fault.step is not None and fault.step >= steps > 0:
            remedy = f"steps of this run are numbered 0 to {steps - 1}"
            raise ConfigurationError("faults", f"must name steps below {steps}", fault.step, remedy)


def check_cuts(faults: Sequence[Fault | Random], *, is_network: bool, remedy: str) -> None:
    """Raise an error if a network should be cut that the ranks do not use."""
    if not is_network and any(isinstance(fault, Cut) for fault in faults):
        raise ConfigurationError("faults", "must have no Cut: the ranks share memory", "Cut", remedy)


def check_joins(faults: Sequence[Fault | Random], job: Job) -> None:
    """Raise an error if a rank should join a run that does not accept it."""
    if any(isinstance(fault, Join) for fault in faults) and not job.regroups:
        remedy = "write min_workers=1, say, with a strategy that repeats steps without lost workers"
        raise ConfigurationError("faults", "must have no Join: the run accepts no workers", "Join", remedy)


def check_min_workers(min_workers: object, workers: int) -> None:
    if min_workers is None:
        return
    if not isinstance(min_workers, int) or isinstance(min_workers, bool) or not 1 <= min_workers <= workers:
        remedy = "omit it if the run must end with the first lost worker"
        raise ConfigurationError(
            "min_workers", f"must be a whole number from 1 to {workers}", min_workers, remedy
        )


def check_no_memory(job: Job, algorithm: str) -> None:
    """Raise an error if a run that may lose ranks uses an algorithm that cannot repeat a step."""
    if job.regroups:
        bound = "must pass messages with min_workers: a lost rank leaves shared memory half written"
        raise ConfigurationError("algorithm", bound, algorithm, "use auto or ring, or omit min_workers")


def check_restart(restart: object, min_workers: int | None) -> None:
    check_flag("restart", restart)
    if restart and min_workers is None:
        remedy = "write min_workers=1, say: the others continue until the new worker joins"
        raise ConfigurationError("restart", "needs min_workers", True, remedy)


def min_workers_words(min_workers: int | None, *, restart: bool) -> list[str]:
    """Return the text for a cluster's description. Empty for the default."""
    words = [] if min_workers is None else [f"at least {min_workers}"]
    return [*words, "lost workers are restarted"] if restart else words


def check_threads(threads: object) -> None:
    if threads is None:
        return
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MAX_THREADS:
        bound = f"must be None or a whole number from 1 to {MAX_THREADS}"
        raise ConfigurationError("threads", bound, threads, "None divides the cores among the workers")


def check_device_word(device: object, *, elsewhere: bool = False) -> None:
    """Check a device name. With `elsewhere`, the device is on other hosts, which check it."""
    if not isinstance(device, str):
        remedy = 'write "cpu", "auto" or torch\'s name for it, such as "cuda"'
        raise ConfigurationError("device", "must be a device name", device, remedy)
    if device != "cpu" and not elsewhere:  # importing torch takes a second
        from paceline.model.devices import check_device

        check_device(device)


def device_words(device: str) -> list[str]:
    """Return the text for a cluster's description. Empty for the default."""
    return [] if device == "cpu" else [f"on {device}"]


def share_of_cores(workers: int) -> int:
    """Return the threads for each worker, so that workers on one host share its cores. Servers mostly wait."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, workers))


def thread_words(threads: int | None) -> list[str]:
    """Return the text for a cluster's description. Empty for the default."""
    return [] if threads is None else [f"{threads} thread{'s' * (threads > 1)} a rank"]


def check_deadline(deadline_s: object) -> None:
    is_number = isinstance(deadline_s, (int, float)) and not isinstance(deadline_s, bool)
    if not is_number or not 0 < deadline_s < math.inf:  # type: ignore[operator]
        raise ConfigurationError(
            "deadline_s", "must be a number of seconds above 0", deadline_s, "60.0 is the default"
        )


def check_real_stragglers(stragglers: Stragglers, ranks: int) -> None:
    """Check the stragglers of a real cluster. Real processes can be slowed down, but not sped up."""
    stragglers.check(ranks)
    for rank, factor in stragglers.slow.items():
        if factor < 1:
            remedy = "a real worker cannot be made faster: slow down the others"
            raise ConfigurationError(f"slow[{rank}]", "must be at least 1", factor, remedy)


def check_ports(ports: object) -> None:
    if ports is None:
        return
    if not isinstance(ports, range) or not ports or not all(1 <= p <= 65535 for p in (ports[0], ports[-1])):
        remedy = "such as range(20000, 20100), open between the hosts"
        raise ConfigurationError("ports", "must be a range of ports, from 1 to 65535", ports, remedy)
