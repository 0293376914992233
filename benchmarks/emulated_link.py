"""Accuracy of an emulated link: seconds of all-reduces, against the simulation.

Four local workers and four simulated ones run one program: each algorithm in turn all-reduces a megabyte. All workers
begin at the same moment, and an all-reduce ends when the last worker has the result. Real messages can only be late: if
a worker wakes up late, everything that depends on it is late too.
"""

from __future__ import annotations

import torch

import paceline as pl
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.clusters.base.job import Cluster
from paceline.collectives import all_reduce
from paceline.context import Context

WORKERS = 4
ALGORITHMS = ("ring", "tree", "reduce-broadcast", "halving-doubling")
LINK = pl.Link(bandwidth="100Mbps", latency="5ms")
BYTES = 1_000_000
APART_S = 0.7  # from the start of one all-reduce to the start of the next
ROUNDS = 7
LIMIT_S = 40.0


def measure() -> Result:
    predicted_s = _seconds(pl.Simulated(workers=WORKERS, compute=pl.times.Constant(0.0), link=LINK))
    measured = [_seconds(pl.Local(workers=WORKERS, link=LINK)) for _ in rounds(ROUNDS, LIMIT_S)]
    result = Result(
        title=f"ms of an all-reduce of {BYTES:,} bytes by {WORKERS} workers, {LINK}",
        unit="ms",
        rows=[],
        goals=[],
    )
    for name in ALGORITHMS:
        ours = Row(what=f"{name}, emulated", rounds=[1e3 * seconds[name] for seconds in measured])
        model = Row(what=f"{name}, simulated", rounds=[1e3 * predicted_s[name]] * len(measured))
        result.rows += [ours, model]
        result.goals.append(
            Goal(what=f"{name}: emulated / simulated", rounds=compare(ours, model), at_most=1.15)
        )
    return result


def _seconds(cluster: Cluster) -> dict[str, float]:
    """Return the seconds of each algorithm, from the first worker's start to the last worker's end."""
    ranks = pl.run_program(_program, cluster).results
    begins, ends = ([rank[which] for rank in ranks] for which in (0, 1))
    return {
        name: max(end[i] for end in ends) - min(begin[i] for begin in begins)
        for i, name in enumerate(ALGORITHMS)
    }


async def _program(ctx: Context) -> list[list[float]]:
    """Return the start and end of each all-reduce on this worker."""
    begins_s, ends_s = [], []
    tensor = torch.zeros(BYTES // 4)
    await all_reduce(ctx, tensor, "ring")  # first access to the memory of the rings
    for place, name in enumerate(ALGORITHMS, start=1):
        await ctx.sleep(max(0.0, APART_S * place - ctx.now()))
        begins_s.append(ctx.now())
        await all_reduce(ctx, tensor, name)
        ends_s.append(ctx.now())
    return [begins_s, ends_s]
