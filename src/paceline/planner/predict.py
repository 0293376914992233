"""Predict a step without running it.

The prediction uses the prices of a device, the link model, the orders of pipelines and the holdings of ranks, as
simulations do. It does not simulate every rank: the rows of a mesh do the same, and so do the ranks of a tensor group.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.clusters.base.job import Cluster
from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.costs.devices import Device
from paceline.costs.prices import ready_shares
from paceline.errors import ConfigurationError
from paceline.model.buckets import Buckets
from paceline.planner.facts import TaskFacts, facts_of
from paceline.planner.mesh import MeshStep, mesh_steps
from paceline.planner.places import Places
from paceline.planner.prediction import Parts, Prediction
from paceline.strategies.all_reduce import AllReduce
from paceline.strategies.registry.table import describe, parse
from paceline.strategies.shared.pipelining.program import Plan, SegmentedStrategy
from paceline.strategies.single import Single
from paceline.strategies.zero import Zero
from paceline.task.checks import check_priced
from paceline.task.task import Task

SUPPORTED = ("single", "all-reduce", "zero:stage=1", "pipeline", "tensor", "hybrid with zero=0 or 1")


def predict(task: Task, strategy: str | Strategy, cluster: Cluster) -> Prediction:
    """Predict the seconds and the memory of a step of `strategy` on a `pl.Simulated` cluster with a device.

    Facts of the task are counted once, in the first prediction.
    """
    steps, parts = predicted_parts(task, strategy, cluster)
    facts, device = steps[0].facts, steps[0].device
    return Prediction(
        step_seconds=parts.total,
        parts=parts,
        memory_bytes=steps[0].memory_bytes(),
        device_bytes=device.memory_bytes,
        batch_size=facts.batches.batch_size,
        tokens_per_sample=facts.tokens_per_sample,
    )


def predicted_parts(task: Task, strategy: str | Strategy, cluster: Cluster) -> tuple[list[MeshStep], Parts]:
    """Predict the seconds only. Return the steps with the larger and smaller micro-batches, and the parts."""
    chosen = parse(strategy)
    check_priced(task)
    simulated, device = _checked(cluster)
    chosen.roles(simulated.workers)
    steps = _steps(facts_of(task), chosen, simulated, device)
    parts = Parts.mean([(_parts(step, chosen), share) for step, share in steps])
    return [step for step, _ in steps], parts


def _checked(cluster: object) -> tuple[Simulated, Device]:
    if not isinstance(cluster, Simulated) or not isinstance(cluster.device, Device):
        remedy = "write pl.Simulated(workers=8, device=pl.devices.A100, …)"
        raise ConfigurationError("cluster", "must be a pl.Simulated with a device", cluster, remedy)
    if cluster.slow or cluster.delay is not None or cluster.faults:
        bound = "must be one of equal devices without faults"
        raise ConfigurationError("cluster", bound, cluster, "simulate stragglers and faults with pl.train")
    return cluster, cluster.device


def _steps(
    facts: TaskFacts, strategy: Strategy, cluster: Simulated, device: Device
) -> list[tuple[MeshStep, float]]:
    plan = _plan_of(strategy, cluster.workers)
    stages = plan.stages
    if stages is None:
        layers, _ = facts.layers(plan.tensor, sequence=False)
        stages = min(cluster.workers, max(1, layers.most // plan.chunks))
    return mesh_steps(facts, plan, Places(cluster, plan.data, stages, plan.tensor), device)


def _plan_of(strategy: Strategy, workers: int) -> Plan:
    if isinstance(strategy, SegmentedStrategy):
        plan = strategy.plan(workers)
        if plan.zero < 2:
            return plan
    if isinstance(strategy, Single):
        return Plan(stages=1, microbatches=1, order="gpipe")
    if isinstance(strategy, AllReduce):
        return Plan(stages=1, data=workers, microbatches=1, order="gpipe", algorithm=strategy.algorithm)
    if isinstance(strategy, Zero) and strategy.stage == 1:
        return Plan(stages=1, data=workers, microbatches=1, order="gpipe", zero=1)
    remedy = f"predicted are {', '.join(SUPPORTED)}; simulate others with pl.train"
    raise ConfigurationError("strategy", "must be one that can be predicted", describe(strategy), remedy)


def _parts(step: MeshStep, strategy: Strategy) -> Parts:
    parts = step.parts()
    return _overlapped(step, parts, strategy) if isinstance(strategy, AllReduce) else parts


def _overlapped(step: MeshStep, parts: Parts, strategy: AllReduce) -> Parts:
    """Return the step in which gradients are summed bucket by bucket, during the backward pass."""
    layout = step.facts.shapes.holding.layout
    buckets = Buckets(layout, int(strategy.bucket_mb * 2**20))
    end_s = 0.0
    for number, ready in zip(buckets.order(), ready_shares(buckets.shares()), strict=True):
        place = buckets.place(number)
        nbytes = (place.stop - place.start) * layout.dtype.itemsize
        end_s = max(end_s, ready * parts.compute) + step.places.sum_s(0, nbytes, strategy.algorithm)
    exposed_s = max(end_s, parts.compute) - parts.compute
    return replace(parts, communicate=exposed_s, wait=0.0, bubble=0.0)
