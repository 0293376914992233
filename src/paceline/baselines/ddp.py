"""PyTorch's DistributedDataParallel on Gloo, run and recorded like a strategy of the local cluster.

Processes, threads, global batches and their slices, seeds, stragglers, evaluation and records are as in `pl.train`.
The step is a textbook DDP step: forward, `loss.backward()`, in which DDP all-reduces its buckets while gradients are
still being computed, and the user's own optimizer.

Measures for a fair comparison:

- DDP averages over ranks. The loss is multiplied by `workers * count / total`, so that the mean is over samples and the
  weights are those of `single`. A rank with an empty slice must still take part: it computes the gradient of one sample
  and multiplies it by 0.
- A straggler has the same delay as with Paceline's strategies. After it has computed all its gradients, it sleeps
in a communication hook before the last bucket. DDP can reduce the earlier buckets meanwhile. Paceline's strategies
delay all buckets.
- Other ranks have no such hook: DDP calls Gloo directly and uses no extra memory. The only addition is one reading of
  the clock before each gradient, about a microsecond.
- The process group is initialized, and DDP is built, before the run's clock starts.

In the trace, `compute` lasts until a rank has passed on its last gradient, even if DDP sends data meanwhile. After
that, until the end of backward, the rank first waits for the slowest rank (`wait`), then for the sum (`receive`).
Bytes sent are computed, not counted: 2 n (p-1)/p for each step and rank, by Gloo's ring algorithm, without buffers.
The number of messages is unknown and given as 0.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from paceline.baselines.collective_waits import find_collective_waits
from paceline.baselines.compute_clock import ComputeClock
from paceline.baselines.plain_loop import PlainLoop, check_cluster, check_task
from paceline.clusters.local.local import Local
from paceline.clusters.process.context import ProcessContext
from paceline.clusters.process.status_board import Status
from paceline.context import Batch, Strategy
from paceline.errors import DeadlineError, PeerLost, RunError
from paceline.model.autocast import computing
from paceline.run_length import count_whole_batches
from paceline.runs.run import Progress, Run
from paceline.task.calls import loss_of
from paceline.task.task import Task
from paceline.trace import Kind
from paceline.training import train

NAME = "ddp"
_GRACE_S = 2.0  # time for the driver to determine which rank Gloo has lost


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
    """Train a task's model with DistributedDataParallel. The other arguments are as in `pl.train`.

    `run.strategy` is "ddp". If some parameters have no gradient in some steps, set `find_unused_parameters`, as
    with DDP itself. This option takes time.
    """
    where = Local() if cluster is None else cluster
    check_cluster(where, "DDP")
    check_task(task, "DDP")
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


@contextlib.contextmanager
def _meeting_point() -> Iterator[str]:
    """Yield the path of an anonymous file that every worker can open while this process lives."""
    fd = os.memfd_create("paceline-ddp", os.MFD_CLOEXEC)
    try:
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ddp(Strategy):
    """Strategy in which every worker wraps its model in DistributedDataParallel."""

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
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on one host
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(settings.meeting_point, -1),
        rank=ctx.rank,
        world_size=len(ctx.workers),
        timeout=timedelta(seconds=settings.deadline_s),
    )


def _start_clocks(ctx: ProcessContext) -> None:
    """Start the run's clock at the same time on all ranks, which share the machine's monotonic clock."""
    dist: Any = importlib.import_module("torch.distributed")
    dist.barrier()
    start_s = torch.tensor([time.monotonic()], dtype=torch.float64)
    dist.broadcast(start_s, 0)
    ctx.begin(start_s.item())


class _Trainer:
    """A rank's model, optimizer and step."""

    def __init__(self, ctx: ProcessContext, *, find_unused: bool) -> None:
        self._ctx = ctx
        self._loop = loop = PlainLoop(ctx, "DDP")
        self._module = module = loop.module
        self._model = nn.parallel.DistributedDataParallel(module, find_unused_parameters=find_unused)
        self._has_buffers = any(True for _ in module.buffers())
        self._pace = ComputeClock(ctx)
        self._set_hooks()

    def _set_hooks(self) -> None:
        for parameter in self._loop.trainable:
            # Called before DDP is notified of this gradient.
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _: self._pace.note_progress()
            )
        if self._pace.is_straggler:
            # Not a method: DDP rejects annotations that are not evaluated.
            self._model.register_comm_hook(None, lambda _, bucket: self._hand_over(bucket))
        if self._has_buffers:
            self._module.register_forward_pre_hook(self._after_buffers)

    def step(self, batch: Batch) -> None:
        ctx = self._ctx
        self._pace.begin()
        self._backward(batch, self._forward(batch))
        self._pace.end()
        received_s = ctx.now()
        ctx.span(Kind.RECEIVE, self._pace.ended_s, received_s, nbytes=self._loop.gradient_bytes)
        ranks = len(ctx.workers)
        ctx.outcome.bytes_sent += 2 * self._loop.gradient_bytes * (ranks - 1) // ranks
        self._loop.update()
        ctx.span(Kind.UPDATE, received_s, ctx.now())

    def _forward(self, batch: Batch) -> Tensor:
        ctx = self._ctx
        # A rank without samples uses one of another rank: DDP needs every rank in every step.
        chosen = batch if batch.count else dataclasses.replace(batch, start=0, count=1)
        content = self._loop.engine.inputs.fetch(chosen, ctx.data.source)
        if not self._module.training:
            self._module.train()
        if self._has_buffers:
            self._pace.note_progress()
            self._pace.end()
        with computing(ctx.job.autocast):
            return loss_of(self._loop.task, self._model, content)

    def _after_buffers(self, module: nn.Module, _inputs: Any) -> None:
        """Record DDP's broadcast of rank 0's buffers.

        It is not computing, so a straggler's slowdown does not apply.
        """
        if module.training:  # not in evaluation
            self._ctx.span(Kind.RECEIVE, self._pace.ended_s, self._ctx.now(), peer=0)
            self._pace.resume()

    def _backward(self, batch: Batch, loss: Tensor) -> None:
        if batch.count:
            self._ctx.model.note_loss(batch, loss.item())
        scale = len(self._ctx.workers) * batch.weight
        self._loop.zero_grad()
        (loss if scale == 1.0 else loss * scale).backward()  # type: ignore[no-untyped-call]

    def _hand_over(self, bucket: Any) -> Any:
        """Reduce a bucket as DDP does by default, after the straggler's delay."""
        if bucket.is_last():
            self._pace.pad_to_duration()
        return allreduce_hook(self._model.process_group, bucket)


@contextlib.contextmanager
def _named_losses(ctx: ProcessContext, deadline_s: float) -> Iterator[None]:
    """Replace Gloo's error (a broken connection or a timeout) by one that names the lost rank and the operation."""
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
