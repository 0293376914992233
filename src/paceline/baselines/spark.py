"""MapReduce as an ordinary Spark job, run and recorded like a strategy of the local cluster.

Each step is one job: the driver broadcasts the parameters, `mapPartitions` computes the gradient of each partition's
slice of the global batch, `treeReduce` sums the gradients, and the driver updates. Slices, seed and weights are those
of `single`. Each step costs the start of a job, a broadcast and a tree of tasks: milliseconds of scheduling, and two
copies of the parameters through Spark's serializers for each worker.

Measures for a fair comparison:

- The task with its data is broadcast once, and each Python worker of Spark builds model and data once. Both happen
  before the run's clock starts.
- Spark runs in `local` mode: its messages do not leave the machine.

In the trace, `compute` is the slowest partition's computation. The rest of the job, except the update, is `receive`.
Bytes sent are computed, not counted: parameters and gradient, once for each worker and step.

Source: Dean and Ghemawat, "MapReduce", OSDI 2004; Zaharia et al., "Resilient Distributed Datasets", NSDI 2012.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

from paceline.baselines.plain_loop import PlainLoop, check_cluster, check_task
from paceline.clusters.base.checks import share_of_cores
from paceline.clusters.hosts.code import own_modules, travelling_by_value
from paceline.clusters.local.local import Local
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.spark.connection import connected, import_spark
from paceline.context import Strategy
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import ConfigurationError
from paceline.run_length import count_whole_batches
from paceline.runs.run import Progress, Run
from paceline.task.calls import loss_of
from paceline.task.task import Task
from paceline.trace import Kind
from paceline.training import train

NAME = "spark"

Sum: TypeAlias = tuple[list[np.ndarray], float, float]
"""Weighted gradients and loss of some partitions, and the seconds of the slowest one."""


def train_with_spark(
    task: Task,
    cluster: Local | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    evaluate_every: int | None = None,
    stop_at_target: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Train a task's model with one Spark job a step, on `cluster.workers` partitions of a private local Spark.

    The other arguments are as in `pl.train`. `run.strategy` is "spark". The run has one rank: Spark's driver.
    """
    where = Local() if cluster is None else cluster
    check_cluster(where, "Spark")
    check_task(task, "Spark")
    if where.slow or where.delay is not None:
        remedy = "omit them, or the baseline: Spark chooses where a partition is computed"
        raise ConfigurationError("slow, delay", "must not be given for Spark", str(where), remedy)
    import_spark()
    job = SparkMapReduce(
        partitions=where.workers,
        threads=where.threads or share_of_cores(where.workers),
        deadline_s=where.deadline_s,
    )
    run = train(
        task,
        job,
        dataclasses.replace(where, workers=1),
        steps=count_whole_batches(task, steps=steps, epochs=epochs),
        seed=seed,
        evaluate_every=evaluate_every,
        stop_at_target=stop_at_target,
        progress=progress,
    )
    run.strategy, run.cluster = NAME, f"{where.workers} partitions on a private Spark"
    return run


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkMapReduce(Strategy):
    """Strategy whose only rank is the driver of a Spark job for each step."""

    partitions: int
    threads: int
    deadline_s: float

    async def worker(self, ctx: ProcessContext) -> None:
        loop = PlainLoop(ctx, "Spark")
        if any(True for _ in loop.module.buffers()):
            remedy = "omit the baseline: its partitions share no state"
            raise ConfigurationError("model", "must have no buffers for Spark", loop.module, remedy)
        with connected(None, self.partitions, {}, self.deadline_s) as spark:
            job = _GradientJob(spark, ctx, loop, self)
            job.gradient(0)  # starts Spark's Python workers, which build the model
            ctx.begin(time.monotonic())
            async for batch in ctx.batches():
                ctx.board.set_step(ctx.rank, batch.step)
                begin_s = ctx.now()
                gradients, loss, seconds = job.gradient(batch.step)
                reduced_s = ctx.now()
                ctx.span(Kind.COMPUTE, begin_s, begin_s + seconds)
                ctx.span(Kind.RECEIVE, begin_s + seconds, reduced_s, nbytes=loop.gradient_bytes)
                ctx.outcome.bytes_sent += 2 * loop.gradient_bytes * self.partitions
                ctx.model.note_loss(batch, loss)
                for parameter, gradient in zip(loop.trainable, gradients, strict=True):
                    parameter.grad = torch.from_numpy(gradient)
                loop.update()
                ctx.span(Kind.UPDATE, reduced_s, ctx.now())


class _GradientJob:
    """A Spark job that computes the gradient of a global batch."""

    def __init__(self, spark: Any, ctx: ProcessContext, loop: PlainLoop, settings: SparkMapReduce) -> None:
        with travelling_by_value(own_modules()):
            task = spark.broadcast(cloudpickle.dumps(loop.task))
        self._spark = spark
        self._loop = loop
        self._map = functools.partial(
            gradients_of, secrets.token_hex(8), task, ctx.job.seed, settings.partitions, settings.threads
        )
        count = settings.partitions
        self._partitions = spark.parallelize(range(count), count)

    def gradient(self, step: int) -> Sum:
        """Return the mean gradient and the mean loss of step `step`'s global batch."""
        parameters = self._spark.broadcast([p.detach().numpy() for p in self._loop.trainable])
        mapped = self._partitions.mapPartitions(functools.partial(self._map, parameters, step))
        found: Sum = mapped.treeReduce(add)
        parameters.destroy()
        return found


def add(one: Sum, other: Sum) -> Sum:
    return [a + b for a, b in zip(one[0], other[0], strict=True)], one[1] + other[1], max(one[2], other[2])


# In Spark's Python workers


_mappers: dict[str, Mapper] = {}
"""Model and data in this process, by run."""


def gradients_of(
    key: str,
    task: Any,
    seed: int,
    workers: int,
    threads: int,
    parameters: Any,
    step: int,
    numbers: Iterable[int],
) -> Iterator[Sum]:
    """Yield the weighted gradient of the slice of each of these partitions."""
    if key not in _mappers:
        _mappers[key] = Mapper(cloudpickle.loads(task.value), seed)
    torch.set_num_threads(threads)
    for number in numbers:
        yield _mappers[key].gradient(parameters.value, step, number, workers)


class Mapper:
    """Model and data in a Python worker of Spark."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self._module: nn.Module = task.build_model(seed)
        self._module.train()
        self._trainable = [p for p in self._module.parameters() if p.requires_grad]
        self._samples = Samples.of(task, seed)
        self._batches = GlobalBatches.of(task, self._samples, seed)

    def gradient(self, parameters: list[np.ndarray], step: int, worker: int, workers: int) -> Sum:
        """Return the weighted gradient and loss of a worker's slice, and the seconds that it took."""
        begin_s = time.monotonic()
        batch = self._batches.slice(step, worker, workers)
        if not batch.count:
            return [np.zeros_like(each) for each in parameters], 0.0, 0.0
        with torch.no_grad():
            for parameter, value in zip(self._trainable, parameters, strict=True):
                parameter.copy_(torch.from_numpy(value))
        self._module.zero_grad()
        loss: Tensor = loss_of(self._task, self._module, self._samples.content(batch, step)) * batch.weight
        loss.backward()  # type: ignore[no-untyped-call]
        zeros = (np.zeros_like(each) for each in parameters)
        gradients = [
            zero if p.grad is None else p.grad.numpy() for p, zero in zip(self._trainable, zeros, strict=True)
        ]
        return gradients, loss.item(), time.monotonic() - begin_s
