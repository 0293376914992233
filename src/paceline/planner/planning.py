"""`pl.plan`, the entry point of plans."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence

from paceline.clusters.base.checks import check_progress
from paceline.clusters.base.job import Cluster, Job
from paceline.clusters.local.local import Local
from paceline.clusters.simulated.calibrated import has_gradients_of
from paceline.clusters.simulated.simulated import Simulated
from paceline.codecs import codec_of, spell_codec
from paceline.costs.calibration import Calibration
from paceline.costs.description import ClusterDescription
from paceline.costs.units import check_positive, parse_bytes
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import ConfigurationError, UnknownNameError
from paceline.planner.calibrate import calibrate
from paceline.planner.entry import Entry
from paceline.planner.estimate import Estimator
from paceline.planner.nothing_fits import nothing_fits
from paceline.planner.plan import Plan
from paceline.planner.search import MOST, Key, Search, SearchProgress, Watch
from paceline.planner.sizing import PlannedCluster
from paceline.planner.target_time import TargetTimes, check_target
from paceline.planner.worth import TIMED, fewest_workers_first
from paceline.run_length import DEFAULT_EPOCHS
from paceline.strategies import STRATEGIES, find
from paceline.strategies.single import Single
from paceline.task.task import Task

_log = logging.getLogger("paceline")

_CALIBRATION_S = 20.0
GOALS = ("time to target", "step", "cost", "memory")


def plan(
    task: Task,
    cluster: Cluster | ClusterDescription | str | os.PathLike[str],
    goal: str | None = None,
    *,
    strategies: str | Sequence[str] | None = None,
    workers: int | tuple[int, int] | None = None,
    memory: str | int | None = None,
    codecs: str | Sequence[str] = (),
    price_per_hour: float | None = None,
    epochs: float = DEFAULT_EPOCHS,
    seed: int = 0,
    most: int = MOST,
    calibration: Calibration | None = None,
    progress: Watch | None = None,
) -> Plan:
    """Find the strategy, its parameters and the number of workers that suit a task on a cluster best.

    `cluster` is a cluster, a description (`pl.load_cluster`) or its name. Plans use its first ranks, or all of them.

    - `goal`: "time to target" (default if the task has a target and weights); "step" (default otherwise), the seconds
      of one batch; "cost", the price of the run to the target, or of one batch without a target; "memory" of the rank
      that needs the most.
    - `strategies`: names of the strategies to try. None for all.
    - `workers`: the number of workers, or the smallest and the largest. None to try several.
    - `memory`: limit for each rank, such as "60GB". None for the memory of the device.
    - `codecs`: codecs to try, such as "bf16,powersgd-2". Their effect on learning is estimated only with a target, by
      simulations.
    - `price_per_hour`: price of a host. None for the price in the description.
    - `epochs`: passes over the data after which a simulation gives up the target.
    - `most`: largest number of predictions.
    - `calibration`: the costs of this machine (`pl.calibrate`), for `pl.Local`. None to calibrate it first, which takes
      20 seconds.

    Every configuration is predicted (`pl.predict`), or simulated briefly where that is not possible. Configurations
    that do not fit into memory are left out of the ranking. Without a time to the target, only strategies with the
    steps of `single` are ranked: others may need more samples, and their number is unknown. With the goals
    "step" and "time to target", the fewest workers are best if a gain by more of them is within the uncertainty of the
    predictions.
    """
    chosen = _checked_goal(task, goal)
    where = _checked_cluster(task, cluster, price_per_hour, calibration, progress)
    if chosen == "cost" and where.price_per_hour is None:
        remedy = "write it into the description of the cluster, or give price_per_hour=32.77"
        raise ConfigurationError("price_per_hour", 'must be given with goal="cost"', None, remedy)
    limit = None if memory is None else _memory_limit(memory, where)
    if not isinstance(most, int) or most < 1:
        raise ConfigurationError("most", "must be a whole number of at least 1", most)
    check_progress(progress)
    if not isinstance(epochs, int | float) or not 0 < epochs < math.inf:
        raise ConfigurationError("epochs", "must be above 0", epochs)
    aims = chosen == "time to target" or (chosen == "cost" and _has_target(task))
    estimator = Estimator(task, where, limit)
    batch_size = GlobalBatches.of(task, Samples.of(task, seed), seed).batch_size
    search = Search(
        estimator=estimator,
        key=_key(chosen),
        names=_names(strategies),
        codecs=_codecs(codecs),
        is_given=strategies is not None,
        aims=aims,
        batch_size=batch_size,
        both_recompute=limit is not None or where.simulated.device is not None,
        watch=progress,
        most=most,
    )
    search.run(_counts(where, workers))
    search.try_codecs()
    entries = _distinct(search.found.values())
    fitting = [entry for entry in entries if entry.prediction.fits]
    if not fitting:
        raise nothing_fits(entries, search.refused)
    estimates = TargetTimes(task, where, epochs, seed, _teller(progress, estimator, most))
    if aims:
        fitting = estimates.estimate(fitting)
    return Plan(
        task=task,
        cluster=where,
        goal=chosen,
        batch_size=batch_size,
        entries=tuple(_ranked(fitting, chosen, aims=aims)),
        rejected=tuple(sorted((each for each in entries if not each.prediction.fits), key=_key(chosen))),
        refused=dict(search.refused),
        missed=tuple(estimates.missed),
        tried=estimator.count,
        skipped=estimates.skipped,
        was_cut=search.was_cut,
        epochs=epochs,
        seed=seed,
    )


def _checked_cluster(
    task: Task,
    cluster: object,
    price_per_hour: float | None,
    calibration: Calibration | None,
    progress: Watch | None,
) -> PlannedCluster:
    def calibrated(local: Local) -> Calibration:
        if calibration is not None:
            _check_calibration(calibration, local, task)
            return calibration
        _log.warning("this machine is calibrated first, for about %d s; see pl.calibrate", _CALIBRATION_S)

        def tell(name: str) -> None:
            if progress is not None:
                progress(SearchProgress(0, MOST, name, calibrates=True))

        return calibrate(local, task, seconds=_CALIBRATION_S, progress=tell)

    where = PlannedCluster.of(cluster, calibrated)
    if price_per_hour is None:
        return where
    check_positive(price_per_hour, "price_per_hour", "write 32.77, the price of one host")
    return dataclasses.replace(where, price_per_hour=price_per_hour)


def _check_calibration(calibration: Calibration, local: Local, task: Task) -> None:
    """Raise an error if a calibration does not have what predictions for these workers need."""
    Simulated(workers=local.workers, threads=local.threads, calibration=calibration)
    job = Job(strategy=Single(), roles=("worker",) * local.workers, seed=0, task=task)
    if not has_gradients_of(calibration, job):
        remedy = "calibrate with this task: pl.calibrate(cluster, task)"
        raise ConfigurationError(
            "calibration", "must have this task's gradients", dict(calibration.task), remedy
        )


def _checked_goal(task: object, goal: str | None) -> str:
    if not isinstance(task, Task):
        raise ConfigurationError("task", "must be a pl.Task", task, "see pl.load_task for tasks in files")
    if goal is None:
        return "time to target" if _has_target(task) else "step"
    if goal not in GOALS:
        raise UnknownNameError("goal", str(goal), GOALS)
    if goal == "time to target":
        check_target(task)
    return goal


def _has_target(task: Task) -> bool:
    try:
        check_target(task)
    except ConfigurationError:
        return False
    return True


def _memory_limit(memory: str | int, cluster: PlannedCluster) -> int:
    limit = parse_bytes(memory, "memory")
    check_positive(limit, "memory", "write 60GB")
    device = cluster.simulated.device
    if device is not None and not isinstance(device, str) and limit > device.memory_bytes:
        bound = f"must be at most the {device.memory_bytes / 1e9:g} GB of the device"
        raise ConfigurationError("memory", bound, memory, "omit it")
    return limit


def _names(strategies: str | Sequence[str] | None) -> list[str]:
    if strategies is None:
        return list(STRATEGIES)
    names = strategies.split(",") if isinstance(strategies, str) else list(strategies)
    for name in names:
        if not isinstance(name, str) or ":" in name:
            remedy = "give names only: the planner chooses the parameters"
            raise ConfigurationError("strategies", "must be names of strategies", name, remedy)
        find(name)
    if not names:
        raise ConfigurationError("strategies", "must be at least one", names, "omit it for all")
    return names


def _codecs(codecs: str | Sequence[str]) -> list[str]:
    words = codecs.split(",") if isinstance(codecs, str) else list(codecs)
    return [spell_codec(found) for each in words if (found := codec_of(each)) is not None]


def _counts(cluster: PlannedCluster, workers: int | tuple[int, int] | None) -> list[int]:
    """Return the numbers of workers to try, largest first."""
    low, high = (1, cluster.workers) if workers is None else _limits(workers)
    if not 1 <= low <= high:
        bound = "must be at least 1, and the smallest not above the largest"
        raise ConfigurationError("workers", bound, workers, "write workers=(2, 16)")
    if high > cluster.workers:
        bound = f"must be at most the {cluster.workers} of the cluster"
        raise ConfigurationError("workers", bound, workers, "use a larger cluster")
    powers = [2**exponent for exponent in range(high.bit_length()) if 2**exponent >= low]
    whole = [count for count in (cluster.per_host * n for n in (1, 2, 3)) if low <= count <= high]
    return sorted({low, high, *powers, *whole} if low < high else {high}, reverse=True)


def _limits(workers: int | tuple[int, int]) -> tuple[int, int]:
    given = (workers, workers) if isinstance(workers, int) else tuple(workers)
    if len(given) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) for n in given):
        bound = "must be a whole number, or the smallest and the largest number"
        raise ConfigurationError("workers", bound, workers, "write workers=(2, 16)")
    return given[0], given[1]


def _key(goal: str) -> Key:
    """Return the figure of an entry that a search minimizes. The time to a target is not known in a search."""
    if goal == "memory":
        return lambda entry: entry.prediction.memory_bytes
    if goal == "cost":
        return lambda entry: entry.batch_seconds * (entry.price_per_second or 0.0)
    return lambda entry: entry.batch_seconds


def _distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Return one entry for specs that differ only in a parameter without effect: the one with the shortest spec."""
    found: dict[tuple[object, ...], Entry] = {}
    for entry in sorted(entries, key=lambda each: len(each.strategy)):
        figures = float(f"{entry.batch_seconds:.6g}"), entry.prediction.memory_bytes
        found.setdefault((entry.family, entry.workers, entry.recompute, *figures), entry)
    return list(found.values())


def _ranked(entries: Sequence[Entry], goal: str, *, aims: bool) -> list[Entry]:
    """Return the entries, best first. Those that cannot be compared come last."""

    def value(entry: Entry) -> float:
        if goal == "memory":
            return entry.prediction.memory_bytes
        if goal == "cost":
            return entry.cost or 0.0
        return entry.seconds

    def order(entry: Entry) -> tuple[bool, float, float]:
        is_last = entry.target is None if aims else not entry.equals_single
        return is_last, value(entry), entry.batch_seconds

    found = sorted(entries, key=order)
    if goal not in TIMED:
        return found
    comparable = [entry for entry in found if not order(entry)[0]]
    return [*fewest_workers_first(comparable, value), *found[len(comparable) :]]


def _teller(progress: Watch | None, estimator: Estimator, most: int) -> Callable[[str], None]:
    def tell(name: str) -> None:
        if progress is not None:
            progress(SearchProgress(estimator.count, most, name))

    return tell
