"""Programs without a task: communication only, on any cluster."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from paceline.clusters.base.job import Cluster, Job
from paceline.clusters.base.outcome import trace_of
from paceline.clusters.local.local import Local
from paceline.context import Context, Strategy
from paceline.errors import ConfigurationError
from paceline.system import interrupts
from paceline.system.forked import limit_threads_after_fork
from paceline.system.user_code import name_of
from paceline.trace import Trace

_REMEDY = "write async def f(ctx): …"


@dataclass(frozen=True, slots=True)
class _EveryRank(Strategy):
    """A strategy in which every rank runs one function."""

    function: Callable[[Context], Awaitable[Any]]

    async def worker(self, ctx: Context) -> Any:
        made = self.function(ctx)
        if not inspect.isawaitable(made):
            found = f"{name_of(self.function)}, which returned {type(made).__name__}"
            raise ConfigurationError("program", "must be async", found, _REMEDY)
        return await made


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """The results of a program's ranks, with their times and traffic."""

    results: list[Any]
    """Return value of each rank."""
    seconds: float
    bytes_sent: list[int]
    messages_sent: list[int]
    trace: Trace


@interrupts.recorded()
def run_program(
    program: Callable[[Context], Awaitable[Any]], cluster: Cluster | None = None, *, seed: int = 0
) -> ProgramRun:
    """Run `async def program(ctx)` on every worker of a cluster.

    The program may use the patterns of `pl.collectives` and all of `ctx` except batches, gradients and updates. It may
    return tensors, numbers, strings, and lists and dictionaries of these.
    """
    if not callable(program):
        raise ConfigurationError("program", "must be a function of a context", program, _REMEDY)
    if inspect.isgeneratorfunction(program) or inspect.isasyncgenfunction(program):
        raise ConfigurationError("program", "must not yield", name_of(program), _REMEDY)
    limit_threads_after_fork()
    where: Cluster = Local() if cluster is None else cluster
    if where.min_workers is not None:
        remedy = "omit it: a program has no steps that can be repeated"
        raise ConfigurationError("min_workers", "is for pl.train", where.min_workers, remedy)
    strategy = _EveryRank(program)
    outcomes = where.run(Job(strategy=strategy, roles=tuple(strategy.roles(where.workers)), seed=seed))
    seconds = max(outcome.seconds for outcome in outcomes)
    return ProgramRun(
        results=[outcome.result for outcome in outcomes],
        seconds=seconds,
        bytes_sent=[outcome.bytes_sent for outcome in outcomes],
        messages_sent=[outcome.messages_sent for outcome in outcomes],
        trace=trace_of(outcomes),
    )
