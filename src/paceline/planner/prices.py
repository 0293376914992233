"""Prices of a task on a cluster, for predictions. What is counted or measured is stored with the facts of the task."""

from __future__ import annotations

from paceline.clusters.base.checks import share_of_cores
from paceline.clusters.base.job import Job
from paceline.clusters.base.threads import computing_threads
from paceline.clusters.simulated.calibrated import calibrated_costs
from paceline.clusters.simulated.gradient_timer import GradientTimer
from paceline.clusters.simulated.models import whole_replica
from paceline.clusters.simulated.simulated import Simulated
from paceline.costs.calibration import SHARED_MEMORY
from paceline.costs.counted import Counted
from paceline.costs.devices import device_of
from paceline.costs.prices import Given, Pricing
from paceline.costs.times import Constant, Phases
from paceline.errors import ConfigurationError
from paceline.planner.facts import TaskFacts
from paceline.strategies.single import Single


def pricing_of(facts: TaskFacts, cluster: Simulated) -> Pricing:
    """Return the prices that a simulation of this cluster would have."""
    if cluster.compute is not None:
        return Given(cluster.compute)
    if cluster.device is not None:
        return Counted(device_of(cluster.device), lambda: facts.operations, bool(facts.task.recompute))
    if facts.is_shapes_only:
        remedy = "write pl.Simulated(workers=8, device=pl.devices.A100, …)"
        raise ConfigurationError("cluster", "needs a device for a model of shapes only", cluster, remedy)
    job = Job(strategy=Single(), roles=("worker",) * cluster.workers, seed=0, task=facts.task)
    return calibrated_costs(cluster, job) or _measured(facts, cluster, job)


def _measured(facts: TaskFacts, cluster: Simulated, job: Job) -> Pricing:
    """Measure gradients on this machine once for each task, or use the times that the cluster shares."""
    timer = GradientTimer(lambda: whole_replica(job), facts.samples, facts.batches, cluster.workers)
    with computing_threads(cluster.threads or share_of_cores(cluster.workers)):
        return (cluster.measured or facts.measured).of(timer)


def needs_simulation(cluster: Simulated) -> bool:
    """Return whether ranks or messages have costs that only the event simulation computes."""
    links = (cluster.between, cluster.memory)
    shares_memory = cluster.link == SHARED_MEMORY
    special = shares_memory or bool(cluster.slow_links) or any(link.message_s for link in links)
    return special or cluster.calibration is not None


def is_random(cluster: Simulated) -> bool:
    """Return whether the seconds of computations are drawn at random."""
    fixed = cluster.compute is None or isinstance(cluster.compute, Constant | Phases)
    delays = cluster.delay.values() if isinstance(cluster.delay, dict) else [cluster.delay]
    return not fixed or any(each is not None and not isinstance(each, Constant) for each in delays)
