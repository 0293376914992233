"""Role programs without a task: communication alone, on any cluster."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from paceline.clusters.job import Cluster, Job
from paceline.clusters.local.local import Local
from paceline.clusters.outcome import trace_of
from paceline.context import Context, Strategy
from paceline.errors import ConfigurationError
from paceline.forked import do_without_lost_threads
from paceline.trace import Trace
from paceline.user_code import name_of

__all__ = ["ProgramRun", "run_program"]


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
    """What a program's ranks returned, and what they did."""

    results: list[Any]
    """By rank."""
    seconds: float
    bytes_sent: list[int]
    messages_sent: list[int]
    trace: Trace


def run_program(
    program: Callable[[Context], Awaitable[Any]], cluster: Cluster | None = None, *, seed: int = 0
) -> ProgramRun:
    """Run `async def program(ctx)` on every worker of a cluster.

    It may use the patterns of `pl.collectives` and all of `ctx` but batches, gradients and updates. It may return
    tensors, numbers, texts, and lists and dictionaries of these.
    """
    if not callable(program):
        raise ConfigurationError("program", "must be a function of a context", program, _REMEDY)
    if inspect.isgeneratorfunction(program) or inspect.isasyncgenfunction(program):
        raise ConfigurationError("program", "must not yield", name_of(program), _REMEDY)
    do_without_lost_threads()
    where: Cluster = Local() if cluster is None else cluster
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
