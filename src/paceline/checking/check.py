"""One batch of a task: what it is and costs; then a step of each strategy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.checking.disk import checkpoint_seconds
from paceline.checking.findings import Finding, caveats
from paceline.checking.trials import Trials, fails_to_travel, try_strategies
from paceline.clusters.checks import check_workers, share_of_cores
from paceline.clusters.threads import computing_threads
from paceline.context import Batch
from paceline.costs.measured import Measured, fit, median_s
from paceline.environment import available_bytes
from paceline.errors import LossNotFiniteError, RunError
from paceline.replica.batches import GlobalBatches
from paceline.replica.calls import target_of
from paceline.replica.portable import copier
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples
from paceline.strategies import STRATEGIES
from paceline.task import Task
from paceline.training import check_seed
from paceline.user_code import user_code

__all__ = ["Checked", "check_task"]

MAX_WORKERS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found."""

    parameters: int
    trainable: int
    model_bytes: int
    """Of parameters and buffers: what a message of all parameters is long, at most."""
    samples: int | None
    """None: a stream, whose end is not known."""
    test_samples: int | None
    batch_size: int
    slice_size: int
    """Samples of a batch that one worker takes, at most."""
    threads: int
    """Of each worker, if all are on this machine; the seconds are with as many."""
    loss: float
    """Of the first batch, before any update."""
    metric: float | None
    """Of the untrained model."""
    price: Measured
    """What a gradient and an update cost here."""
    memory: Mapping[str, int]
    """Bytes of one worker: parameters, gradients, optimizer, activations (of its slice)."""
    checkpoint_s: float | None
    """To write a checkpoint here, on the disk. None: it cannot be written."""
    travels: bool
    """Whether it can be sent to worker processes."""
    findings: tuple[Finding, ...]
    trials: Trials

    @property
    def trainable_here(self) -> bool:
        """Whether nothing is known that keeps the default strategy from training it in processes."""
        return self.travels and "all-reduce" not in self.trials.failures

    @property
    def checkpoint_bytes(self) -> int:
        """Of the model and the optimizer's state."""
        return self.model_bytes + self.memory["optimizer"]

    def gradient_s(self, samples: int) -> float:
        return self.price.fixed_s + self.price.per_sample_s * samples


def check_task(
    task: Task, *, workers: int = 4, seed: int = 0, progress: Callable[[str], None] = lambda name: None
) -> Checked:
    """Build everything, compute one batch, update once, and try each strategy. Raises what training would raise.

    `progress` is told the name of the strategy that is tried next.
    """
    check_workers(workers, MAX_WORKERS)
    check_seed(seed)
    module, data = task.build_model(seed), task.build_data()
    make = copier(task.model, module)
    built = dataclasses.replace(task, data=data)  # once: a factory may read gigabytes
    samples, held_out = Samples.of(built, seed), Samples.of_test(task)
    batches = GlobalBatches.of(built, samples, seed)
    whole, own = batches.slice(0, 0, 1), batches.slice(0, 0, workers)
    replica = Replica(task, module, seed=seed)
    with computing_threads(threads := share_of_cores(workers)):
        loss = _first_loss(replica, samples, whole)
        metric = _metric(task, replica, held_out)
        price = _price(replica, samples, batches)
        memory = _memory(replica, samples, whole, own.count)
    targets = target_of(samples.fetch(whole.indices))
    trials = Trials({}, (), tuple(STRATEGIES))
    # A simulation holds the models of all ranks: of the workers, and of a server.
    if (workers + 1) * sum(memory.values()) < (available_bytes() or math.inf) / 2:
        trials = try_strategies(task, make, data, workers=workers, seed=seed, progress=progress)
    stays = fails_to_travel(task)
    told = [*([stays] if stays else ()), *trials.findings()]
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
    if not math.isfinite(loss):
        raise LossNotFiniteError(0, 0, loss)
    if replica.not_finite is not None:
        raise RunError(f"the gradient of {replica.not_finite} is not finite in the first batch")
    return loss


def _metric(task: Task, replica: Replica, test: Samples | None) -> float | None:
    if test is None or task.metric is None:
        return None
    return next(iter(replica.evaluate(test).values()))


def _price(replica: Replica, samples: Samples, batches: GlobalBatches) -> Measured:
    """What a gradient takes is a line through a batch and half of it."""
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
