"""Use of a calibration by a simulation: its links, its cores, and the seconds of the task's gradients."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from paceline.clusters.base.checks import share_of_cores
from paceline.clusters.base.job import Job
from paceline.clusters.simulated.cores import Cores
from paceline.clusters.simulated.kernel import Kernel
from paceline.clusters.simulated.models import build_model
from paceline.context import Batch
from paceline.costs.calibrated_costs import ComputeCosts
from paceline.costs.calibration import SHARED_MEMORY, TCP, WINDOW, Calibration
from paceline.costs.link import Link
from paceline.costs.measured import Measured
from paceline.costs.pass_shares import PassShares
from paceline.errors import ConfigurationError
from paceline.model.cutting.cut import Cut
from paceline.task.fingerprint import fingerprint

if TYPE_CHECKING:
    from paceline.clusters.simulated.simulated import Simulated

_log = logging.getLogger("paceline")

_COMPARED = ("model", "loss")
"""Facts of a task that determine the seconds of a gradient. The number of samples is a variable of the costs."""


def settled_link(cluster: Simulated) -> Link | str:
    """Return the link of a simulation. Raise an error if the link, the calibration and the cluster do not
    fit together."""
    calibration, link = cluster.calibration, cluster.link
    if calibration is not None:
        _check(calibration, cluster)
    if link == "auto":
        return Link("10Gbps", "50us") if calibration is None else SHARED_MEMORY
    names = (SHARED_MEMORY,) if calibration is None else (SHARED_MEMORY, TCP)
    if isinstance(link, Link) or link in names:
        return link
    bound = f"must be a pl.Link or {' or '.join(map(repr, names))}"
    raise ConfigurationError("link", bound, link, 'write pl.Link("10Gbps", "50us")')


def _check(calibration: object, cluster: Simulated) -> None:
    if not isinstance(calibration, Calibration):
        remedy = "write pl.Calibration.load(path), or pl.calibrate(pl.Local(workers=4))"
        raise ConfigurationError("calibration", "must be a pl.Calibration", calibration, remedy)
    if cluster.device is not None:
        bound, remedy = "must not be given together with calibration", "a calibration has measured seconds"
        raise ConfigurationError("device", bound, cluster.device, f"{remedy}: omit one of them")
    if cluster.compute is None:
        calibration.compute_of(cluster.workers, cluster.threads)
    _warn_if_elsewhere(calibration)


def knows_gradients(cluster: Simulated) -> bool:
    """Return whether the calibration has the gradients of a task."""
    return cluster.calibration is not None and bool(cluster.calibration.task)


def calibrated_link(cluster: Simulated) -> Link | None:
    """Return the measured link between ranks. None if links are given."""
    if cluster.calibration is None or not isinstance(cluster.link, str):
        return None
    return cluster.calibration.link_of(cluster.link, cluster.workers)


def window_link(cluster: Simulated) -> Link:
    """Return the cost of reads and barriers of a window."""
    if cluster.calibration is not None and isinstance(cluster.link, str):
        return cluster.calibration.link_of(WINDOW, cluster.workers)
    return Link.ideal() if cluster.hosts == 1 and cluster.between is cluster.link else cluster.memory


def link_words(cluster: Simulated) -> str:
    """Return the text for the links in a cluster's description."""
    if not isinstance(cluster.link, str):
        return f"link {cluster.between}"
    of = cluster.memory if cluster.calibration is None else cluster.between
    return f"{'TCP' if cluster.link == TCP else 'shared memory'} {of}"


def threads_of(cluster: Simulated, workers: int) -> int:
    """Return the threads of each rank: as many as the real run would use."""
    if cluster.threads is not None or cluster.calibration is None:
        return cluster.threads or share_of_cores(workers)
    return cluster.calibration.threads_of(workers)


def copy_s_per_byte(cluster: Simulated) -> float:
    """Return the seconds in which a rank copies a byte. 0 if it is not known."""
    rate = 0.0 if cluster.calibration is None else cluster.calibration.copy_bytes_per_s
    return 1 / rate if rate else 0.0


def shared_cores(cluster: Simulated, kernel: Kernel, workers: int) -> Cores | None:
    """Return the cores that all ranks share. None if each rank has its own, or if seconds are given."""
    if cluster.calibration is None or cluster.compute is not None:
        return None
    return Cores(kernel, cluster.calibration.compute_of(workers, cluster.threads).factor)


def calibrated_costs(cluster: Simulated, job: Job) -> Measured | None:
    """Return the calibrated gradients and updates of the job's task. None if they have to be measured here.

    Raise an error if they cannot be: the calibration is of another machine.
    """
    calibration = cluster.calibration
    if calibration is None:
        return None
    if has_gradients_of(calibration, job):
        costs = calibration.compute_of(job.workers, cluster.threads)
        assert job.task is not None
        line = costs.line_near(job.task.batch_size / job.workers)
        return Measured(*line, costs.update_s, costs.update_bytes)
    remedy = "calibrate with this task: paceline calibrate mine.py"
    if not calibration.is_of_this_machine:
        bound = "must have this task's gradients, because it is of another machine"
        raise ConfigurationError("calibration", bound, dict(calibration.task), remedy)
    if cluster.math == "none":
        bound = 'must have this task\'s gradients with math="none"'
        raise ConfigurationError("calibration", bound, dict(calibration.task), remedy)
    if calibration.task:
        _log.warning("the calibration is of another task: gradients of this one are measured now")
    return None


class CalibratedPasses:
    """Seconds of passes through segments, from the shares of a gradient that a calibration has measured."""

    def __init__(self, costs: ComputeCosts, shares: PassShares) -> None:
        self._costs = costs
        self._shares = shares

    def seconds(self, cut: Cut, way: str, segment: int, batch: Batch) -> float | None:
        """Return the seconds of a pass. None if the model has other parts than the measured one."""
        if cut.shares is not None or cut.bounds[-1] != self._shares.parts:
            return None
        fixed_s, per_sample_s = self._costs.line_near(batch.count)
        first, last = cut.bounds[segment], cut.bounds[segment + 1]
        share = self._shares.between(first, last, backward=way != "forward")
        parts = 2 if way in ("inputs", "weights") else 1
        return (fixed_s + per_sample_s * batch.count) * share / parts


def calibrated_passes(cluster: Simulated, job: Job) -> CalibratedPasses | None:
    """Return the measured passes of the job's task. None if there are none."""
    calibration = cluster.calibration
    if calibration is None or cluster.compute is not None or not has_gradients_of(calibration, job):
        return None
    costs = calibration.compute_of(job.workers, cluster.threads)
    return None if costs.passes is None else CalibratedPasses(costs, costs.passes)


def has_gradients_of(calibration: Calibration, job: Job) -> bool:
    """Return whether a calibration has the gradients of the job's task."""
    if not calibration.task or job.task is None:
        return False
    found = fingerprint(job.task, build_model(job), samples=0, test_samples=0)
    return all(found[name] == calibration.task.get(name) for name in _COMPARED)


def _warn_if_elsewhere(calibration: Calibration) -> None:
    differences = calibration.differences
    if differences:
        _warn_once("; ".join(differences), calibration.is_of_this_machine)


@functools.cache
def _warn_once(differences: str, is_here: bool) -> None:
    of = "with other versions" if is_here else "on another machine: predictions are for that one"
    _log.warning("the calibration was made %s (%s)", of, differences)
