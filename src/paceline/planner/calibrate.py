"""`pl.calibrate`: measure the costs of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.clusters.base.checks import check_progress, share_of_cores
from paceline.clusters.local.local import Local
from paceline.context import Context
from paceline.costs.calibrated_costs import ComputeCosts, LinkCosts
from paceline.costs.calibration import SHARED_MEMORY, TCP, Calibration
from paceline.costs.units import check_positive
from paceline.errors import ConfigurationError
from paceline.planner.calibrating.compute import ComputeProgram, costs_of
from paceline.planner.calibrating.links import LinkProgram, fitted
from paceline.programs import run_program
from paceline.system import interrupts
from paceline.system.environment import machine
from paceline.task.fingerprint import fingerprint
from paceline.task.task import Task

_SHARES = {"start": 0.02, "links": 0.3, "compute": 0.68}
_DEADLINE_S = 1800.0
_FEW = 8
"""All numbers of ranks up to this one are measured, then only powers of two and the largest."""

Watch = Callable[[str], None]
"""Called with the name of each measurement when it begins."""


@interrupts.recorded()
def calibrate(
    cluster: Local | None = None,
    task: Task | None = None,
    *,
    seconds: float = 60.0,
    progress: Watch | None = None,
) -> Calibration:
    """Measure the costs of this machine: links, gradients and updates of the task, ranks that share cores.

    `cluster` gives the number of ranks and their threads. Both shared memory and TCP are measured. Without a task, only
    links and the slowdown of ranks are measured, with a small model. Measurements are repeated until `seconds` have
    passed, and usually three times at least. `progress` receives the name of each measurement when it begins.

    Predictions use the result: `pl.Simulated(workers=4, calibration=…)`.
    """
    where = Local() if cluster is None else cluster
    _check(where, task, seconds, progress)
    watch = progress or (lambda name: None)
    began_s = time.monotonic()
    watch("start")
    start_s = _start_s(where)
    links = _links(where, seconds * _SHARES["links"], watch)
    compute, copied = _compute(where, task, seconds * _SHARES["compute"], watch)
    return Calibration(
        machine=machine(),
        workers=where.workers,
        compute=compute,
        links=tuple(links),
        task={} if task is None else _identity(task),
        start_s=start_s,
        copy_bytes_per_s=copied,
        took_s=time.monotonic() - began_s,
    )


def _check(cluster: object, task: object, seconds: object, progress: object) -> None:
    if not isinstance(cluster, Local):
        remedy = "write pl.Local(workers=4); clusters of several hosts have descriptions: see pl.load_cluster"
        raise ConfigurationError("cluster", "must be a pl.Local", cluster, remedy)
    if cluster.compute is not None or not isinstance(cluster.link, str):
        remedy = "omit compute and the emulated link: their costs are given"
        raise ConfigurationError("cluster", "must not be emulated", cluster, remedy)
    if cluster.slow or cluster.delay is not None:
        remedy = "omit slow and delay, and give them to pl.Simulated"
        raise ConfigurationError("cluster", "must have no stragglers", cluster, remedy)
    if cluster.device != "cpu":
        raise ConfigurationError("cluster", "must compute on the CPU", cluster.device, "omit device")
    if task is not None and not isinstance(task, Task):
        raise ConfigurationError("task", "must be a pl.Task", task, "see pl.load_task for tasks in files")
    check_positive(seconds, "seconds", "60 is the default")
    check_progress(progress)


def _identity(task: Task) -> dict[str, str]:
    return fingerprint(task, task.build_model(0), samples=0, test_samples=0)


async def _nothing(ctx: Context) -> None:
    pass


def _start_s(cluster: Local) -> float:
    """Return the seconds of a run that does nothing. The first one also starts the fork server."""
    taken_s = []
    for _ in range(3):
        began_s = time.monotonic()
        run_program(_nothing, cluster)
        taken_s.append(time.monotonic() - began_s)
    return min(taken_s)


def _links(cluster: Local, limit_s: float, watch: Watch) -> list[LinkCosts]:
    counts = sorted({count - count % 2 for count in _counts(2, cluster.workers)})
    found: list[LinkCosts] = []
    for kind in (SHARED_MEMORY, TCP) if counts else ():
        watch(f"messages over {kind}")
        program = LinkProgram(counts=counts, limit_s=limit_s / 2, has_windows=kind == SHARED_MEMORY)
        results = run_program(program, replace(cluster, link=kind, encrypt=False)).results
        found += fitted(kind, counts, results)
    return found


def _compute(
    cluster: Local, task: Task | None, limit_s: float, watch: Watch
) -> tuple[tuple[ComputeCosts, ...], float]:
    """Measure ranks with each number of threads that runs of up to `workers` ranks have."""
    by_threads: dict[int, list[int]] = {}
    for workers in _counts(1, cluster.workers):
        by_threads.setdefault(cluster.threads or share_of_cores(workers), []).append(workers)
    made, copied, cores = [], 0.0, int(machine()["cores"])
    for threads, workers_of in sorted(by_threads.items(), reverse=True):
        counts = sorted({1, *workers_of})
        ranks = f"{_words(counts)} rank{'s' * (counts[-1] > 1)}"
        watch(f"computations of {ranks} with {threads} thread{'s' * (threads > 1)}")
        program = ComputeProgram(task=task, counts=counts, limit_s=limit_s / len(by_threads))
        local = replace(
            cluster,
            workers=counts[-1],
            threads=threads,
            link=SHARED_MEMORY,
            encrypt=False,
            # Ranks wait while others compute gradients, which may take minutes.
            deadline_s=max(cluster.deadline_s, _DEADLINE_S),
        )
        costs, copied = costs_of(threads, counts, run_program(program, local).results, cores)
        made.append(costs)
    return tuple(made), copied


def _words(counts: Sequence[int]) -> str:
    return " and ".join(map(str, counts)) if len(counts) < 3 else f"{counts[0]} to {counts[-1]}"


def _counts(first: int, last: int) -> list[int]:
    """Return the numbers of ranks to measure."""
    powers = {2**power for power in range(last.bit_length())}
    return [count for count in range(first, last + 1) if count <= _FEW or count in powers or count == last]
