"""Cost of the trace in a step: cost of a span, times spans per step, as a fraction of the step.

The cost of a span is measured in a worker process of the local cluster, with the calls of a worker:
two clock readings, one span, and the packing of the span at the end. Comparing runs with and without a trace is not
possible, because they differ by more than 2 % for other reasons.
"""

from __future__ import annotations

import time
from typing import Any

import paceline as pl
from benchmarks.result import Goal, Result, Row
from benchmarks.rounds import rounds
from benchmarks.step_time import step_seconds, train
from paceline.clusters.base.job import Job
from paceline.clusters.local.local import Local
from paceline.context import Strategy
from paceline.trace import Kind, Recorder

WORKERS = (2, 4)
ROUNDS = 3
LIMIT_S = 10.0
STEPS = 20
SPANS = 20_000  # spans per measurement


def measure() -> Result:
    result = Result(title="the trace of an all-reduce step", unit="µs", rows=[], goals=[])
    for workers in WORKERS:
        _measure_workers(workers, result)
    return result


def _measure_workers(workers: int, result: Result) -> None:
    steps_s, spans_s, shares = [], [], []
    for _ in rounds(ROUNDS, LIMIT_S):
        run = train(workers, "all-reduce", STEPS)
        steps_s.append(step_seconds(run))
        spans_s.append(_span_seconds() * _spans_per_step(run))
        shares.append(100 * spans_s[-1] / steps_s[-1])
    result.rows += [
        Row(what=f"{workers} workers: a step", rounds=[1e6 * s for s in steps_s]),
        Row(what=f"{workers} workers: recording its spans", rounds=[1e6 * s for s in spans_s]),
    ]
    result.goals.append(Goal(what=f"{workers} workers: spans, in % of a step", rounds=shares, at_most=2))
    result.notes.append(f"{workers} workers: {_spans_per_step(run):.1f} spans a step and worker")


def _spans_per_step(run: pl.Run) -> float:
    return max(len(spans) for spans in run.trace.spans) / run.steps


class Probe(Strategy):
    """A role program that only records spans. It uses methods outside the Context interface."""

    async def worker(self, ctx: Any) -> float:
        start_s = time.perf_counter()
        for _ in range(SPANS):
            began_s = ctx.now()
            ctx.span(Kind.UPDATE, began_s, ctx.now())
        ctx.recorder.pack().to_bytes()
        seconds = time.perf_counter() - start_s
        ctx.recorder = Recorder(ctx.rank, ctx.role)  # the driver does not need these spans
        return seconds / SPANS


def _span_seconds() -> float:
    outcomes = Local(workers=1).run(Job(strategy=Probe(), roles=("worker",), seed=0))
    return float(outcomes[0].result)
