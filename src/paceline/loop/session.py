"""A user's loop as one worker of a run: the program's thread, and the end of the loop."""

from __future__ import annotations

import atexit
import copy
import functools
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from paceline.checkpoints.generations import NEVER
from paceline.clusters.base.declarations import Declarations
from paceline.clusters.base.job import Job
from paceline.clusters.base.outcome import Outcome, assemble
from paceline.clusters.launched.launched import Launched
from paceline.clusters.launched.run import LaunchedRun
from paceline.clusters.process.gradient_duration import pad_to_duration
from paceline.context import Strategy
from paceline.errors import RunError
from paceline.loop.context import LoopContext
from paceline.loop.engine import optimizer_factory, replica_of
from paceline.loop.facts import OptionNames, StepFacts
from paceline.loop.gradients import LoopGradients
from paceline.loop.learner import LoopLearner
from paceline.loop.rendezvous import Delivery, Errand, Rendezvous
from paceline.model.engines.settings import Settings
from paceline.model.replica import Replica
from paceline.runs.run import Run
from paceline.task.task import Task

_log = logging.getLogger("paceline")

_GRACE_S = 10.0  # timeout for notifying the other ranks that the user's code has failed
_GATHER = 2**31 + 2  # tag of the values that `pl.gather` collects; strategies use small tags


class Loop:
    """The user's loop on this rank."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        strategy: Strategy,
        name: str,
        roles: Sequence[str],
        cluster: Launched,
        seed: int = 0,
        out: Path | None = None,
    ) -> None:
        self.module = module
        self._cluster = cluster
        self._out = out
        self.rank = cluster.place.rank
        template = copy.deepcopy(optimizer, {id(p): p for p in module.parameters()})
        self._template = template
        self.options = OptionNames(template.param_groups)
        task = Task(
            model=module,
            data=(torch.zeros(1), torch.zeros(1)),
            step=_no_step,
            optimizer=lambda given: optimizer_factory(module, template)(given._module),
            batch_size=1,
        )
        self.job = Job(strategy=strategy, roles=tuple(roles), seed=seed, name=name, task=task, steps=NEVER)
        self.workers = self.job.workers
        self.is_server = self.rank >= self.workers
        own = next((p.device for p in module.parameters() if p.requires_grad), torch.device("cpu"))
        self.device = None if own.type == "cpu" else own
        self.order_state = torch.get_rng_state()
        """State of torch's generator at the first worker, for the order of the data."""
        self.steps_together = self.workers == 1 or Declarations.of(strategy).syncs_batch_norm(self.workers)
        """Whether all workers compute the slices of one batch at the same time."""
        self.rendezvous = Rendezvous()
        self.gradients = LoopGradients(module, self.workers)
        self.steps = 0
        """Calls of `optimizer.step()`, including those before a resume."""
        self._first = 0
        self.has_departed = False
        """Whether the other ranks have been notified that this loop has ended."""
        self.is_over = False
        """Whether the run has ended although this rank's loop has not: because too few other workers are left."""
        self.clip_norm = math.inf
        self.logged: dict[str, float] = {}
        self._context: LoopContext | None = None
        self._outcomes: list[Outcome] = []
        self._run: Run | None = None

    @property
    def learner(self) -> LoopLearner:
        """The learning part of this worker's program. Read it between two steps only."""
        assert self._context is not None
        return self._context.model

    @property
    def has_begun(self) -> bool:
        """Whether a step has been taken."""
        return self.steps > self._first

    def resume_at(self, steps: int) -> None:
        """Start counting at this number of steps. Call it before the first step."""
        assert self._context is not None
        self.steps = self._first = steps
        self._context.begun = self._context.step = steps

    # What the context needs

    def replica(self, job: Job, rank: int) -> Replica:
        """Return the model replica of a rank's program.

        A rank that is also a server has a second one, for its twin.
        """
        if job.roles[rank] in ("worker", "server"):
            return self.own_replica(job, rank)
        return self._replica_of(copy.deepcopy(self.module), job, rank)

    def own_replica(self, job: Job, rank: int) -> Replica:
        """Return the replica that uses the user's module."""
        return self._replica_of(self.module, job, rank)

    def _replica_of(self, module: nn.Module, job: Job, rank: int) -> Replica:
        assert job.task is not None
        return replica_of(Settings(task=job.task, seed=job.seed, rank=rank), module)

    def other_tensors(self) -> list[Tensor]:
        """Return tensors that must be equal on all ranks besides parameters and buffers: frozen parameters, the
        data order."""
        frozen = [parameter.data for parameter in self.module.parameters() if not parameter.requires_grad]
        return [*frozen, self.order_state]

    def note_over(self) -> None:
        """Handle a run that has ended before this loop: the loader stops, and further steps do nothing."""
        self.is_over = True
        _log.warning(
            "rank %d: the run has ended after %d steps of this loop, because other loops have ended and the "
            "strategy needs more workers; further steps change nothing",
            self.rank,
            self.steps,
        )

    # Called by the user's thread

    def start(self) -> None:
        """Start the run. Return on a worker when all ranks have the same values. A server exits at the end."""
        run = LaunchedRun(self._cluster, self.job, open_context=self._open)
        if self.is_server:
            run.work(None)
            raise SystemExit(0)
        atexit.register(self._finish_at_exit, os.getpid())
        sys.excepthook = functools.partial(self._note_exception, sys.excepthook)
        self._thread = threading.Thread(target=self._work, args=(run,), name="paceline", daemon=True)
        self._thread.start()
        self.rendezvous.wait_until_parked()
        torch.set_num_threads(self._threads)
        self._begin_step()

    def deliver(self, options: tuple[float, ...]) -> None:
        """Pass the gradient of this step to the program, and wait for the end of the step."""
        if self._run is not None:
            raise RunError("the run has ended: call pl.finish() after the last step")
        if self.is_over:
            return
        self.gradients.check_unchanged()
        count, total = self.gradients.end_step()
        assert self._context is not None
        self._wait_like_a_straggler(count)
        facts = StepFacts(
            step=self.steps,
            count=count,
            total=total,
            clip_norm=self.clip_norm,
            loss=self.logged.pop("loss", math.nan),
            options=options,
        )
        self.steps += 1
        self.rendezvous.deliver(Delivery(facts=facts, start_s=self._begun_s, logged=self.logged))
        self._begin_step()

    def gather(self, value: Tensor) -> list[Tensor]:
        """Return the values of all workers. Each worker must call it, between two steps."""
        found: list[Tensor] = self.rendezvous.run(_gather(value))
        return found

    def _begin_step(self) -> None:
        assert self._context is not None
        self.clip_norm, self.logged = math.inf, {}
        self._begun_s, self._processor_s = self._context.now(), time.thread_time()
        if math.isinf(self._begun_s):  # the clock is set at the start of the run
            self._begun_s = 0.0

    def _wait_like_a_straggler(self, count: int) -> None:
        context = self._context
        assert context is not None
        least_s, took_s = context.duration.begin(count), context.now() - self._begun_s
        left_s = context.duration.left_s(least_s, took_s, time.thread_time() - self._processor_s)
        pad_to_duration(left_s, context.deadline_s)

    def finish(self) -> Run:
        """End this loop, wait for the others, and return the run."""
        if self._run is None:
            self.rendezvous.end()
            while self._thread.is_alive():
                self._thread.join(1.0)
            self.rendezvous.wait_until_parked()  # raise the error that ended the run
            if not self.has_begun:
                raise RunError(
                    "the loop has ended without a call of optimizer.step() of the prepared optimizer"
                )
            self._run = assemble(self.job, str(self._cluster), self._outcomes, self.module)
            self._save(self._run)
        return self._run

    def _save(self, run: Run) -> None:
        if self._out is not None and self.rank == 0:
            run.save(self._out)
            run.trace.save(self._out / "trace.json")
            run.report(self._out / "report.html")

    # The program's thread

    def _open(self, job: Job, rank: int, **options: Any) -> LoopContext:
        self._threads = torch.get_num_threads()
        self._context = LoopContext(job, rank, loop=self, **options)
        return self._context

    def _work(self, run: LaunchedRun) -> None:
        error: BaseException | None = None
        try:
            self._outcomes = run.work(None)
        except BaseException as raised:
            error = raised
        self.rendezvous.close(error)

    # The end of the process

    def _note_exception(
        self, before: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Notify the other ranks that the user's code has failed on this rank, and print the error."""
        atexit.unregister(self._finish_at_exit)
        before(kind, error, trace)
        self.rendezvous.end(error)
        self._thread.join(_GRACE_S)

    def _finish_at_exit(self, pid: int) -> None:
        if os.getpid() != pid:  # a forked process, such as a loader
            return
        try:
            self.finish()
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # an exit handler cannot set the exit code


def _no_step(model: Any, batch: Any) -> Any:
    raise AssertionError("the user's loop computes the gradients")


def _gather(value: Tensor) -> Errand:
    """Return an errand that collects the values of all workers. Their shapes may differ."""

    async def run(context: LoopContext) -> list[Tensor]:
        net, flat = context.net, value.contiguous()
        others = [worker for worker in context.workers if worker != context.rank]
        sending = [context.start(net.send(other, flat, tag=_GATHER)) for other in others]
        found = {context.rank: value}
        for other in others:
            found[other] = (await net.recv(other, tag=_GATHER)).tensor
        for handle in sending:
            await handle
        return [found[worker] for worker in context.workers]

    return run
