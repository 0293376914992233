"""PyTorch's DistributedDataParallel on Gloo, run and recorded as a strategy of the local cluster is.

Processes, threads, global batches and their slices, seeds, stragglers, evaluation and records are those of `pl.train`;
the step is DDP's as a textbook has it: forward, `loss.backward()`, in which DDP sums its buckets while gradients are
still being computed, and the user's own optimizer.

What is fair to DDP, and how it is arranged:

- DDP averages over ranks. The loss is multiplied with `workers * count / total`, so that the mean is over samples and
  the weights are those of `single`. A rank whose slice is empty still has to take part; it computes one sample's
  gradient and multiplies it with 0.
- A straggler is late by what our own strategies would suffer: when it has computed all its gradients it sleeps, in a
  communication hook, before it hands over the last bucket. DDP goes on summing the earlier ones meanwhile, where ours
  hold back all of them.
- Other ranks have no such hook: nothing stands between DDP and Gloo, and no memory is used but DDP's own. All that is
  added is a look at the clock before each gradient is handed over, about a microsecond.
- Processes meet, and DDP is built, before the run's clock starts.

What the trace knows: `compute` lasts until a rank has handed over its last gradient, whatever DDP sends meanwhile. From
then on until backward ends it waits for the rank that hands over last (`wait`, for that rank), then for the sum
(`receive`). Bytes sent are computed, not counted: 2 n (p-1)/p a step and rank, by the ring that Gloo uses, buffers left
out. Messages are not known and given as 0.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from paceline.baselines.collective_waits import find_collective_waits
from paceline.baselines.pace import Pace
from paceline.budget import count_whole_batches
from paceline.clusters.local.local import Local
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.status_board import Status
from paceline.context import Batch, Strategy
from paceline.costs.link import Link
from paceline.errors import ConfigurationError, DeadlineError, PeerLost, RunError
from paceline.replica.autocast import computing
from paceline.replica.calls import loss_of
from paceline.run import Progress, Run
from paceline.task import Task
from paceline.task_checks import waits_for_metric
from paceline.trace import Kind
from paceline.training import train

__all__ = ["train_with_ddp"]

NAME = "ddp"
_GRACE_S = 2.0  # when Gloo has lost a rank, how long the driver may take to learn which


def train_with_ddp(
    task: Task,
    cluster: Local | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    evaluate_every: int | None = None,
    stop_at_target: bool = False,
    progress: Callable[[Progress], None] | None = None,
    find_unused_parameters: bool = False,
) -> Run:
    """Train a task's model with DistributedDataParallel; the other words mean what they mean to `pl.train`.

    `run.strategy` is "ddp". A model of which not every parameter has a gradient in every step needs
    `find_unused_parameters`, as with DDP itself, which costs time.
    """
    where = Local() if cluster is None else cluster
    _check_cluster(where)
    _check_task(task)
    with _meeting_point() as path:
        run = train(
            task,
            Ddp(meeting_point=path, deadline_s=where.deadline_s, find_unused=find_unused_parameters),
            where,
            steps=count_whole_batches(task, steps=steps, epochs=epochs),
            seed=seed,
            evaluate_every=evaluate_every,
            stop_at_target=stop_at_target,
            progress=progress,
        )
    run.strategy = NAME
    run.trace = find_collective_waits(run.trace)
    return run


def _check_cluster(cluster: object) -> None:
    remedy = "torch.distributed runs in real processes and does not pass an emulated link"
    if not isinstance(cluster, Local):
        raise ConfigurationError("cluster", "must be a pl.Local for DDP", cluster, remedy)
    if isinstance(cluster.link, Link):
        raise ConfigurationError("link", 'must be "shared-memory" for DDP', cluster.link, remedy)
    if cluster.device != "cpu":
        remedy = "DDP is measured here over Gloo, in the processor's memory"
        raise ConfigurationError("device", 'must be "cpu" for DDP', cluster.device, remedy)


def _check_task(task: Task) -> None:
    """Refuse what the baseline would leave out in silence."""
    own = {
        "step": task.step is not None,
        "optimizer": isinstance(task.optimizer, Mapping),
        "accumulate": task.accumulate > 1,
        "ema": task.ema is not None,
        "schedule_every": task.schedule_every != "step",
        "compile": task.compile,
    }
    for argument in (argument for argument, is_given in own.items() if is_given):
        remedy = "leave the baseline out: it is a plain loop of a loss and one optimizer"
        raise ConfigurationError(argument, "must not be given for DDP", getattr(task, argument), remedy)


@contextlib.contextmanager
def _meeting_point() -> Iterator[str]:
    """A file without a name, which every worker can open while this process lives."""
    fd = os.memfd_create("paceline-ddp", os.MFD_CLOEXEC)
    try:
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ddp(Strategy):
    """Every worker wraps its model in DistributedDataParallel."""

    meeting_point: str
    deadline_s: float
    find_unused: bool

    async def worker(self, ctx: ProcessContext) -> None:
        with _named_losses(ctx, self.deadline_s):
            _join(ctx, self)
            trainer = _Trainer(ctx, find_unused=self.find_unused)
            _start_clocks(ctx)
            async for batch in ctx.batches():
                ctx.board.set_step(ctx.rank, batch.step)
                trainer.step(batch)


def _join(ctx: ProcessContext, settings: Ddp) -> None:
    dist: Any = importlib.import_module("torch.distributed")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: nothing needs to leave it
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(settings.meeting_point, -1),
        rank=ctx.rank,
        world_size=len(ctx.workers),
        timeout=timedelta(seconds=settings.deadline_s),
    )


def _start_clocks(ctx: ProcessContext) -> None:
    """Let the run begin now, at one instant for all ranks: the monotonic clock is the machine's."""
    dist: Any = importlib.import_module("torch.distributed")
    dist.barrier()
    start_s = torch.tensor([time.monotonic()], dtype=torch.float64)
    dist.broadcast(start_s, 0)
    ctx.begin(start_s.item())


class _Trainer:
    """A rank's model, optimizer and step."""

    def __init__(self, ctx: ProcessContext, *, find_unused: bool) -> None:
        assert ctx.job.task is not None
        self._ctx = ctx
        self._task = ctx.job.task
        self._module = module = self._task.build_model(ctx.job.seed)
        ctx.model.replica.module = module  # what is evaluated and brought home is DDP's
        self._model = nn.parallel.DistributedDataParallel(module, find_unused_parameters=find_unused)
        self._optimizer = self._task.build_optimizer(module)
        self._schedule = self._task.build_schedule(self._optimizer)
        if waits_for_metric(self._schedule):
            remedy = "choose a schedule that goes by updates"
            raise ConfigurationError("schedule", "must not need a metric for DDP", self._schedule, remedy)
        self._trainable = [p for p in module.parameters() if p.requires_grad]
        self._gradient_bytes = sum(p.numel() * p.element_size() for p in self._trainable)
        self._has_buffers = any(True for _ in module.buffers())
        self._pace = Pace(ctx)
        self._set_hooks()

    def _set_hooks(self) -> None:
        for parameter in self._trainable:
            # It is called before DDP learns that this gradient is there.
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _: self._pace.note_progress()
            )
        if self._pace.is_straggler:
            # Not a method: DDP refuses annotations that are not evaluated.
            self._model.register_comm_hook(None, lambda _, bucket: self._hand_over(bucket))
        if self._has_buffers:
            self._module.register_forward_pre_hook(self._after_buffers)

    def step(self, batch: Batch) -> None:
        ctx = self._ctx
        self._pace.begin()
        self._backward(batch, self._forward(batch))
        self._pace.end()
        received_s = ctx.now()
        ctx.span(Kind.RECEIVE, self._pace.ended_s, received_s, nbytes=self._gradient_bytes)
        ranks = len(ctx.workers)
        ctx.outcome.bytes_sent += 2 * self._gradient_bytes * (ranks - 1) // ranks
        self._update()
        ctx.span(Kind.UPDATE, received_s, ctx.now())

    def _forward(self, batch: Batch) -> Tensor:
        ctx = self._ctx
        # Who has no sample takes somebody's: DDP needs every rank in every step.
        chosen = batch if batch.count else dataclasses.replace(batch, start=0, count=1)
        content = ctx.model.replica.fetch(chosen, ctx.data.source)
        if not self._module.training:
            self._module.train()
        if self._has_buffers:
            self._pace.note_progress()
            self._pace.end()
        with computing(ctx.job.autocast):
            return loss_of(self._task, self._model, content)

    def _after_buffers(self, module: nn.Module, _inputs: Any) -> None:
        """DDP has just broadcast the first rank's buffers: that was no computing, so a slow rank is no slower at it."""
        if module.training:  # or else it is being evaluated
            self._ctx.span(Kind.RECEIVE, self._pace.ended_s, self._ctx.now(), peer=0)
            self._pace.resume()

    def _backward(self, batch: Batch, loss: Tensor) -> None:
        if batch.count:
            self._ctx.model.note_loss(batch, loss.item())
        scale = len(self._ctx.workers) * batch.weight
        self._optimizer.zero_grad()
        (loss if scale == 1.0 else loss * scale).backward()  # type: ignore[no-untyped-call]

    def _hand_over(self, bucket: Any) -> Any:
        """What DDP does with a bucket anyway, but later."""
        if bucket.is_last():
            self._pace.dawdle()
        return allreduce_hook(self._model.process_group, bucket)

    def _update(self) -> None:
        if self._task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trainable, self._task.clip_norm)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()


@contextlib.contextmanager
def _named_losses(ctx: ProcessContext, deadline_s: float) -> Iterator[None]:
    """Gloo says that a connection broke or that time is over; say who is lost, and what was waited for."""
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error).lower():
            raise
        raise _cause(ctx, str(error), deadline_s) from error


def _cause(ctx: ProcessContext, text: str, deadline_s: float) -> RunError:
    operation = f"DistributedDataParallel in step {ctx.step}"
    if "timed out" in text.lower():
        return DeadlineError(ctx.rank, operation, "another rank", deadline_s)
    until_s = time.monotonic() + _GRACE_S
    while time.monotonic() < until_s:
        for rank in ctx.workers:
            if rank != ctx.rank and ctx.board.status(rank) == Status.LOST:
                return PeerLost(rank, "", f"rank {ctx.rank} was waiting in {operation}")
        time.sleep(0.01)
    return RunError(f"rank {ctx.rank} failed in {operation}: {text}")
