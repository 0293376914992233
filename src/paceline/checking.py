"""A task tried before it is trained: one batch, what it is and costs, and what will not work with which strategies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from paceline.chance import kept
from paceline.costs.prices import Measured, fit
from paceline.errors import LossNotFiniteError, RunError
from paceline.replica.batches import GlobalBatches
from paceline.replica.optimizer import works_elementwise
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples
from paceline.task import Task
from paceline.user_code import user_code

__all__ = ["Checked", "Finding", "check_task"]

_TRIES = 5
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will not work, or not as one might think."""

    strategies: str
    why: str


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
    loss: float
    """Of the first batch, before any update."""
    metric: float | None
    """Of the untrained model."""
    price: Measured
    """What a gradient and an update cost here."""
    peak_bytes: int
    """What one worker's parameters, gradients and optimizer state take."""
    findings: tuple[Finding, ...]

    def gradient_s(self, samples: int) -> float:
        return self.price.fixed_s + self.price.per_sample_s * samples


def check_task(task: Task, *, workers: int = 4, seed: int = 0) -> Checked:
    """Build everything, compute one batch and update once. Raises what training would raise."""
    with kept():
        return _check(task, workers, seed)


def _check(task: Task, workers: int, seed: int) -> Checked:
    module = task.build_model(seed)
    samples, test = Samples.of(task, seed), Samples.of_test(task)
    batches = GlobalBatches.of(task, samples, seed)
    replica = Replica(task, module, seed=seed)
    whole, half = batches.slice(0, 0, 1), batches.slice(0, 0, 2)
    loss = _first_loss(replica, samples, batches)
    metric = None
    if test is not None and (function := task.metric_function()) is not None:
        metric = replica.evaluate(test, function)
    whole_s = _median_s(lambda: replica.compute(whole, samples))
    half_s = _median_s(lambda: replica.compute(half, samples))
    fixed_s, per_sample_s = fit((whole.count, half.count), (whole_s, half_s))
    update_s = _median_s(replica.apply)
    trainable = replica.parameters.nbytes
    moments = sum(moment.nbytes for moment in replica.moments())
    return Checked(
        parameters=sum(p.numel() for p in module.parameters()),
        trainable=replica.parameters.numel(),
        model_bytes=sum(t.nbytes for t in (*module.parameters(), *module.buffers())),
        samples=None if samples.is_stream else samples.length,
        test_samples=test.length if test is not None else None,
        batch_size=whole.count,
        loss=loss,
        metric=metric,
        price=Measured(fixed_s, per_sample_s, update_s),
        peak_bytes=2 * trainable + moments,
        findings=tuple(_findings(task, module, whole.count, workers)),
    )


def _first_loss(replica: Replica, samples: Samples, batches: GlobalBatches) -> float:
    with user_code("the first batch could not be computed"):
        loss = replica.compute(batches.slice(0, 0, 1), samples)
    if not torch.isfinite(torch.tensor(loss)):
        raise LossNotFiniteError(0, 0, loss)
    if replica.not_finite is not None:
        raise RunError(f"the gradient of {replica.not_finite} is not finite in the first batch")
    return loss


def _findings(task: Task, module: nn.Module, batch_size: int, workers: int) -> Iterator[Finding]:
    if batch_size < workers:
        why = f"the batch of {batch_size} gives {workers} workers less than a sample each"
        yield Finding("hogwild, decentralized:mode=async", f"{why}: they refuse it")
        yield Finding("all others", f"{why}: some compute nothing")
    normed = [name for name, layer in module.named_modules() if isinstance(layer, _BATCH_NORMS)]
    if normed:
        why = f"{normed[0]} is a BatchNorm: it sees its worker's slice alone, as with DDP"
        if batch_size < 2 * workers:
            why += f", and fails on a slice of one sample: {workers} workers share a batch of {batch_size}"
        yield Finding("all with several workers", why)
    optimizer = task.build_optimizer(module)
    if not works_elementwise(optimizer):
        why = (
            f"{type(optimizer).__name__} needs whole layers: shards are cut between layers and may be uneven"
        )
        yield Finding("sync with several servers, all-reduce:algorithm=shared", why)
    if task.clip_norm is not None:
        why = "each worker clips its own gradient, not that of the batch"
        yield Finding("decentralized, local-sgd, fedavg", why)


def _median_s(work: Callable[[], object]) -> float:
    taken_s = []
    for _ in range(_TRIES):
        start_s = time.perf_counter()
        work()
        taken_s.append(time.perf_counter() - start_s)
    return sorted(taken_s)[_TRIES // 2]
