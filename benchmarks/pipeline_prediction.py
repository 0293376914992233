"""Accuracy of simulated pipelines: predicted seconds of a step / measured seconds.

This is the transformer of the benchmark `pipeline`, in 2 stages with 8 micro-batches, one thread per rank, in each
order. The simulation gets only the link, which is measured with messages between two processes. It measures the times
of passes and updates itself, as `pl.Simulated` without `compute` does. It runs in as many processes at the same time as
the pipeline has ranks: cores share caches and memory, so one busy core is faster than several.

Prediction and run follow each other within seconds, because the speed of a virtual machine changes within minutes. An
order takes about a minute and a half, and can be measured separately: `pipeline_prediction:zb-h1`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import torch

import paceline as pl
from benchmarks.pipeline import MICRO_BATCHES, STAGES, task
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.collectives import barrier
from paceline.context import Context
from paceline.costs.fit import fit_link

ORDERS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1}
"""Number of chunks of each order."""
PARTS = tuple(ORDERS)
NEAREST, FARTHEST = 0.85, 1.15
ROUNDS, LIMIT_S = 5, 60.0
"""Time limit for each order."""
STEPS, WARM_UP = 6, 2
MESSAGE_BYTES = (4 * 2**10, 64 * 2**10, 512 * 2**10, 2 * 2**20)
MESSAGES = 30


def measure(orders: Sequence[str] = PARTS) -> Result:
    measured: dict[str, list[float]] = {order: [] for order in orders}
    predicted: dict[str, list[float]] = {order: [] for order in orders}
    for number in rounds(ROUNDS, LIMIT_S * len(orders)):
        link, first = _measure_link(), number % len(orders)
        for order in (*orders[first:], *orders[:first]):
            measured[order].append(1e3 * _run(order))
            predicted[order].append(1e3 * _predict(order, link))
    rows = {
        order: (
            Row(what=f"{order}, measured", rounds=measured[order]),
            Row(what=f"{order}, predicted", rounds=predicted[order]),
        )
        for order in orders
    }
    return Result(
        title=f"ms a step of an 11-million-parameter transformer in {STAGES} stages",
        unit="ms",
        rows=[row for both in rows.values() for row in both],
        goals=[
            Goal(
                what=f"{order}: predicted / measured",
                rounds=compare(foretold, found),
                at_least=NEAREST,
                at_most=FARTHEST,
            )
            for order, (found, foretold) in rows.items()
        ],
        notes=["a simulated rank has its own core: more stages than cores are not predicted"],
    )


def _spec(order: str) -> str:
    words = f"pipeline:stages={STAGES},microbatches={MICRO_BATCHES},order={order}"
    return words if ORDERS[order] == 1 else f"{words},chunks={ORDERS[order]}"


def _run(order: str) -> float:
    run = pl.train(task(), _spec(order), pl.Local(workers=STAGES, threads=1), steps=STEPS)
    ends_s = [record.seconds for record in run.history]
    return statistics.median(b - a for a, b in itertools.pairwise(ends_s[WARM_UP:]))


def _predict(order: str, link: pl.Link) -> float:
    cluster = pl.Simulated(workers=STAGES, threads=1, link="shared-memory", inside=link)

    async def simulate(ctx: Context) -> float:
        await barrier(ctx)
        first, second = (r.seconds for r in pl.train(task(), _spec(order), cluster, steps=2).history)
        return second - first

    found: list[float] = pl.run_program(simulate, pl.Local(workers=STAGES, threads=1)).results
    return statistics.mean(found)


def _measure_link() -> pl.Link:
    """Measure the link with round trips to another process."""

    async def play(ctx: Context) -> list[float]:
        return [await _message_s(ctx, nbytes) for nbytes in MESSAGE_BYTES]

    seconds, _ = pl.run_program(play, pl.Local(workers=2, threads=1)).results
    return fit_link(MESSAGE_BYTES, seconds)


async def _message_s(ctx: Context, nbytes: int) -> float:
    message, taken_s = torch.zeros(nbytes, dtype=torch.uint8), []
    for _ in range(MESSAGES):
        start_s = ctx.now()
        if ctx.rank == 0:
            await ctx.net.send(1, message)
            await ctx.net.recv(1, message)
        else:
            await ctx.net.recv(0, message)
            await ctx.net.send(0, message)
        taken_s.append((ctx.now() - start_s) / 2)
    return statistics.median(taken_s)
