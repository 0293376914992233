"""Compute one batch of a task for its properties and costs, then try a few steps of each strategy."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from paceline.checking.findings import SEVERAL, Finding, caveats
from paceline.checking.trials import LONGEST_S, Trials, fails_to_travel, try_strategies
from paceline.checkpoints import Shard, Store
from paceline.clusters.base.checks import check_workers, share_of_cores
from paceline.clusters.base.threads import computing_threads
from paceline.context import Batch
from paceline.costs.measured import Measured, fit, median_s
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import LossNotFiniteError, RunError
from paceline.model.loss_trial import NOT_A_MEAN, is_no_mean
from paceline.model.portable import copier
from paceline.model.replica import Replica
from paceline.strategies import STRATEGIES
from paceline.system.environment import available_bytes
from paceline.system.seeding import rng_preserved
from paceline.system.user_code import user_code
from paceline.task.calls import outputs_of, target_of
from paceline.task.task import Task
from paceline.training import check_seed

MAX_WORKERS = 1_000_000

_MOST_BYTES = 2**26
"""Maximum number of bytes written. The time of a larger checkpoint is extrapolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check."""

    parameters: int
    trainable: int
    model_bytes: int
    """Size of parameters and buffers in bytes. No message is longer."""
    samples: int | None
    """Number of training samples. None for a stream."""
    test_samples: int | None
    batch_size: int
    slice_size: int
    """Largest number of samples in one worker's slice of a batch."""
    threads: int
    """Threads of each worker, if all are on this machine. The times are measured with this number."""
    loss: float
    """Loss of the first batch, before any update."""
    metric: float | None
    """Metric of the untrained model; None if the task has none."""
    price: Measured
    """Measured cost of a gradient and of an update."""
    memory: Mapping[str, int]
    """Bytes on one worker: parameters, gradients, optimizer, activations (of its slice)."""
    checkpoint_s: float | None
    """Seconds to write a checkpoint to disk here. None if it cannot be written."""
    travels: bool
    """Whether the task can be pickled and sent to worker processes."""
    findings: tuple[Finding, ...]
    trials: Trials

    @property
    def trainable_here(self) -> bool:
        """Whether no known problem prevents the default strategy from training the task in processes."""
        return self.travels and "all-reduce" not in self.trials.failures

    @property
    def checkpoint_bytes(self) -> int:
        """Size of the model and the optimizer's state."""
        return self.model_bytes + self.memory["optimizer"]

    def gradient_s(self, samples: int) -> float:
        return self.price.fixed_s + self.price.per_sample_s * samples


def check_task(
    task: Task,
    *,
    workers: int = 4,
    seed: int = 0,
    seconds: float = LONGEST_S,
    progress: Callable[[str], None] = lambda name: None,
) -> Checked:
    """Build everything, compute one batch, update once, and try each strategy. Raise the errors of a training run.

    Strategies are tried for about `seconds`, the cheapest first.
    `progress` is called with the name of the next strategy.
    """
    check_workers(workers, MAX_WORKERS)
    check_seed(seed)
    module, data = task.build_model(seed), task.build_data()
    make = copier(task.model, module)
    built = dataclasses.replace(task, data=data)  # built once: a factory may read gigabytes
    samples, held_out = Samples.of(built, seed), Samples.of_test(task)
    batches = GlobalBatches.of(built, samples, seed)
    whole, own = batches.slice(0, 0, 1), batches.slice(0, 0, workers)
    replica = Replica.of(task, module, seed=seed)
    with computing_threads(threads := share_of_cores(workers)):
        loss = _first_loss(replica, samples, whole)
        metric = _metric(task, replica, held_out)
        price = _price(replica, samples, batches)
        memory = _memory(replica, samples, whole, own.count)
    content = samples.fetch(whole.indices)
    targets = target_of(content)
    trials = Trials({}, (), tuple(STRATEGIES))
    # A simulation has the models of all ranks in memory: all workers and a server.
    if (workers + 1) * sum(memory.values()) < (available_bytes() or math.inf) / 2:
        trials = try_strategies(
            task, make, data, workers=workers, seed=seed, longest_s=seconds, progress=progress
        )
    stays = fails_to_travel(task)
    told = [*([stays] if stays else ()), *trials.findings()]
    if workers > 1 and _loss_is_no_mean(task, make(), content):
        told.append(Finding(SEVERAL, NOT_A_MEAN))
    told += caveats(task, make(), targets, batch_size=whole.count, workers=workers)
    model_bytes = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    return Checked(
        parameters=sum(p.numel() for p in module.parameters()),
        trainable=replica.parameters.numel(),
        model_bytes=model_bytes,
        samples=None if samples.is_stream else samples.length,
        test_samples=None if held_out is None else held_out.length,
        batch_size=whole.count,
        slice_size=own.count,
        threads=threads,
        loss=loss,
        metric=metric,
        price=price,
        memory=memory,
        checkpoint_s=checkpoint_seconds(model_bytes + memory["optimizer"]),
        travels=stays is None,
        findings=tuple(told),
        trials=trials,
    )


def _first_loss(replica: Replica, samples: Samples, whole: Batch) -> float:
    with user_code("the first batch could not be computed"):
        loss = replica.compute(whole, samples)
    assert loss is not None
    if not math.isfinite(loss):
        raise LossNotFiniteError(0, 0, loss, replica.loss_cause)
    if replica.not_finite is not None:
        raise RunError(f"the gradient of {replica.not_finite} is not finite in the first batch")
    return loss


def _loss_is_no_mean(task: Task, module: nn.Module, content: object) -> bool:
    if task.loss is None or task.step is not None:
        return False
    try:
        with rng_preserved(), torch.no_grad():
            return is_no_mean(task.loss, outputs_of(task, module, content), target_of(content))
    except (
        Exception
    ):  # the batch has already been computed in another way, so a failure here is not a finding
        return False


def _metric(task: Task, replica: Replica, test: Samples | None) -> float | None:
    if test is None or task.metric is None:
        return None
    return next(iter(replica.inspection.evaluate(test).values()))


def _price(replica: Replica, samples: Samples, batches: GlobalBatches) -> Measured:
    """Measure the cost of a gradient: a line through the times of a whole batch and of half a batch."""
    whole, half = batches.slice(0, 0, 1), batches.slice(0, 0, 2)
    whole_s = median_s(lambda: replica.compute(whole, samples))
    fixed_s, per_sample_s = whole_s, 0.0
    if half.count > 1:  # BatchNorm fails on a single sample
        half_s = median_s(lambda: replica.compute(half, samples))
        fixed_s, per_sample_s = fit((whole.count, half.count), (whole_s, half_s))
    return Measured(fixed_s, per_sample_s, median_s(replica.apply))


def _memory(replica: Replica, samples: Samples, whole: Batch, own: int) -> dict[str, int]:
    kept: dict[int, int] = {}
    parameters = {p.untyped_storage().data_ptr() for p in replica.module.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        replica.compute(whole, samples)
    return {
        "parameters": replica.parameters.nbytes,
        "gradients": replica.gradient.nbytes,
        "optimizer": sum(moment.nbytes for moment in replica.moments()),
        "activations": sum(kept.values()) * own // whole.count,
    }


def checkpoint_seconds(nbytes: int) -> float | None:
    """Return the seconds to write `nbytes` to disk in the current folder; None if it cannot be written."""
    written = min(nbytes, _MOST_BYTES)
    shard = Shard(rank=0, tensors={"parameters/all": torch.arange(written // 4, dtype=torch.int32)}, facts={})
    place = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
    try:
        with tempfile.TemporaryDirectory(prefix=".paceline-", dir=place) as folder:
            store = Store(Path(folder))
            store.begin(0)
            began_s = time.perf_counter()
            store.write(1, shard)
            store.commit(1, 1, {}, deadline_s=60)
            return (time.perf_counter() - began_s) * nbytes / max(written, 1)
    except OSError:
        return None
