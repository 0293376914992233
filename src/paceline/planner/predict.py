"""Predict a step without running it.

The prediction uses the prices of a device, the link model, the orders of pipelines and the holdings of ranks, as
simulations do. It does not simulate every rank: the rows of a mesh do the same, and so do the ranks of a tensor group.
"""

from __future__ import annotations

from paceline.clusters.base.job import Cluster
from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.costs.devices import Device
from paceline.errors import ConfigurationError
from paceline.planner.events import GRADIENTS, simulated_parts
from paceline.planner.facts import TaskFacts, facts_of
from paceline.planner.mesh import mesh_steps
from paceline.planner.mesh_memory import MeshMemory
from paceline.planner.places import Places
from paceline.planner.prediction import Parts, Prediction
from paceline.planner.prices import needs_simulation
from paceline.planner.replicas import replicas_parts
from paceline.planner.sharded import ShardedStep
from paceline.strategies.registry.priced import stored_in_16_bits
from paceline.strategies.registry.table import parse
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy
from paceline.strategies.zero import SEGMENTS, Zero
from paceline.task.task import Task


def predict(task: Task, strategy: str | Strategy, cluster: Cluster) -> Prediction:
    """Predict the seconds and the memory of a step of `strategy` on a `pl.Simulated` cluster.

    Facts of the task are counted once, in the first prediction.
    """
    return predicted(task, strategy, cluster, GRADIENTS)


def predicted(task: Task, strategy: str | Strategy, cluster: Cluster, gradients: int) -> Prediction:
    """Predict a step. `gradients` is the length of simulations that have no steady state, or random times."""
    chosen, simulated = parse(strategy), _checked(cluster)
    _check_price(task, simulated)
    simulated.stragglers.check(len(chosen.roles(simulated.workers)))
    task = stored_in_16_bits(task, chosen, simulated.workers)
    facts = facts_of(task)
    encodes = getattr(chosen, "codec", "none") != "none"  # the formulas do not count encoded bytes
    formulas = () if encodes else (replicas_parts, mesh_parts)
    counted = (formula(facts, chosen, simulated) for formula in formulas)
    parts, memory_bytes = next(filter(None, counted), None) or simulated_parts(
        facts, chosen, simulated, gradients
    )
    device = simulated.device
    return Prediction(
        step_seconds=parts.total,
        parts=parts,
        memory_bytes=memory_bytes,
        device_bytes=device.memory_bytes if isinstance(device, Device) else None,
        batch_size=facts.batches.batch_size,
        tokens_per_sample=facts.tokens_per_sample,
    )


def _checked(cluster: object) -> Simulated:
    if not isinstance(cluster, Simulated):
        remedy = "write pl.Simulated(workers=8, device=pl.devices.A100, …)"
        raise ConfigurationError("cluster", "must be a pl.Simulated", cluster, remedy)
    if cluster.faults:
        remedy = "simulate faults with pl.train"
        raise ConfigurationError("faults", "must be left out of a prediction", cluster.faults, remedy)
    return cluster


def _check_price(task: Task, cluster: Simulated) -> None:
    """Raise if the seconds of a computation in 16 bits are unknown: measured ones are of float32."""
    if task.precision != "fp32" and cluster.device is None and cluster.compute is None:
        bound = "must be fp32 if the seconds of computations are measured"
        remedy = "give the cluster a device (device=pl.devices.A100) or times (compute=pl.times.…)"
        raise ConfigurationError("precision", bound, task.precision, remedy)


def mesh_parts(facts: TaskFacts, strategy: Strategy, cluster: Simulated) -> tuple[Parts, int] | None:
    """Return the parts of a step of a mesh, and the peak memory. None if it must be simulated.

    The samples of a row may not be a multiple of the micro-batches. The result is then the mean over both sizes.
    """
    plan = _plan_of(facts, strategy, cluster.workers)
    if plan is None or not isinstance(cluster.device, Device) or needs_simulation(cluster):
        return None
    if cluster.slow or cluster.delay is not None:
        return None
    places = Places(cluster, plan.data, _stages(facts, plan, cluster.workers), plan.tensor)
    if isinstance(strategy, Zero):
        steps = mesh_steps(facts, plan, places, cluster.device, finer=strategy.segments or SEGMENTS)
        sharded = [(ShardedStep(step, strategy.stage == 3), share) for step, share in steps]
        return Parts.mean([(each.parts(), share) for each, share in sharded]), sharded[0][0].memory_bytes()
    steps = mesh_steps(facts, plan, places, cluster.device)
    return Parts.mean([(step.parts(), share) for step, share in steps]), MeshMemory(
        steps[0][0]
    ).largest_bytes()


def _stages(facts: TaskFacts, plan: Plan, workers: int) -> int:
    if plan.stages is not None:
        return plan.stages
    layers, _ = facts.layers(plan.tensor, sequence=False)
    return min(workers, max(1, layers.most // plan.chunks))


def _plan_of(facts: TaskFacts, strategy: Strategy, workers: int) -> Plan | None:
    if isinstance(strategy, SegmentedStrategy):
        return strategy.plan(workers)
    if isinstance(strategy, Zero) and not strategy.hooks:
        microbatches = strategy.microbatches or facts.task.accumulate
        return Plan(stages=1, data=workers, microbatches=microbatches, order="gpipe")
    return None
