"""Time of one step: all-reduce, against DistributedDataParallel on Gloo and against no communication.

All use the same model (784-1024-1024-10, float32), data, optimizer and samples per worker, with one thread per worker.
Without communication each worker computes its gradient and takes its own full step. This is the time on a perfect
network, if each worker holds a whole model.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import paceline as pl
from benchmarks.mlp import SAMPLES, build_model, cross_entropy, make_data, make_optimizer
from benchmarks.plain_torch import ALONE, DDP, PlainTorch
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.trace import Kind

WORKERS = (2, 4)
ROUNDS = 9
LIMIT_S = 50.0
STEPS = 30
WARM_UP = 5  # first steps of every block, in which caches fill and memory is allocated
SHARED, RING = "all-reduce", "all-reduce:algorithm=ring"


def measure() -> Result:
    result = Result(title="ms a step of a 1.9-million-parameter MLP", unit="ms", rows=[], goals=[])
    for workers in WORKERS:
        _measure_workers(workers, result)
    return result


def train(workers: int, strategy: str, steps: int = STEPS) -> pl.Run:
    """Run Paceline once."""
    task = pl.Task(
        model=build_model,
        data=partial(make_data, workers),
        loss=cross_entropy,
        optimizer=make_optimizer,
        batch_size=SAMPLES * workers,
    )
    return pl.train(task, strategy, pl.Local(workers=workers), steps=steps)


def step_seconds(run: pl.Run) -> float:
    return _typical([record.seconds for record in run.history])


def _measure_workers(workers: int, result: Result) -> None:
    runs: list[pl.Run] = []
    with PlainTorch(workers) as plain_torch:
        blocks: dict[str, Callable[[], float]] = {
            SHARED: lambda: _run_ours(workers, SHARED, runs),
            DDP: lambda: _run_plain_torch(plain_torch, DDP),
            ALONE: lambda: _run_plain_torch(plain_torch, ALONE),
            RING: lambda: _run_ours(workers, RING, []),
        }
        measured = _take_turns(blocks)
    ours, ddp, alone, ring = (
        Row(what=f"{workers} workers: {name}", rounds=[1e3 * s for s in measured[kind]])
        for kind, name in (
            (SHARED, "all-reduce"),
            (DDP, "DistributedDataParallel on Gloo"),
            (ALONE, "no communication"),
            (RING, "all-reduce by messages in a ring"),
        )
    )
    result.rows += [ours, ddp, alone, ring]
    result.goals += [
        Goal(what=f"{workers} workers: DDP / all-reduce", rounds=compare(ddp, ours), at_least=1.6),
        Goal(
            what=f"{workers} workers: all-reduce / no communication",
            rounds=compare(ours, alone),
            at_most=1.15,
        ),
        Goal(what=f"{workers} workers: DDP / ring", rounds=compare(ddp, ring)),
    ]
    result.notes += [
        f"{workers} workers: {_where_the_time_went(runs)}",
        # If other processes use the machine, the least disturbed rounds are the most accurate.
        f"{workers} workers, by each one's fastest round: DDP / all-reduce {_fastest(ddp, ours):.2f}, "
        f"all-reduce / no communication {_fastest(ours, alone):.2f}",
    ]


def _fastest(above: Row, below: Row) -> float:
    return min(above.rounds) / min(below.rounds)


def _take_turns(blocks: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run one block of each per round, starting with another one each time, so that the order favours none."""
    measured: dict[str, list[float]] = {name: [] for name in blocks}
    names = list(blocks)
    for number in rounds(ROUNDS, LIMIT_S):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            measured[name].append(blocks[name]())
    return measured


def _run_ours(workers: int, strategy: str, runs: list[pl.Run]) -> float:
    run = train(workers, strategy)
    runs.append(run)
    return step_seconds(run)


def _run_plain_torch(plain_torch: PlainTorch, kind: str) -> float:
    return _typical(_common_steps(plain_torch.run(kind, STEPS)))


def _common_steps(ends_s: list[list[float]]) -> list[float]:
    """Return the times at which all workers had done one more step, while all of them were computing.

    Workers that do not wait for each other share the cores unevenly for a while. The steps of a single worker would
    show the time slices of the scheduler, not the work.
    """
    last_s = min(ends[-1] for ends in ends_s)
    together = sorted(end for ends in ends_s for end in ends if end <= last_s)
    return together[len(ends_s) - 1 :: len(ends_s)]


def _typical(ends_s: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(ends_s[WARM_UP:]))


def _where_the_time_went(runs: list[pl.Run]) -> str:
    """Return the mean milliseconds per step and worker of our runs, by kind, from the trace."""
    parts = {"compute": Kind.COMPUTE, "sum": Kind.RECEIVE, "update": Kind.UPDATE, "barriers": Kind.WAIT}
    means = {name: statistics.median(_mean_ms(run, kind) for run in runs) for name, kind in parts.items()}
    return "all-reduce's step: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in means.items())


def _mean_ms(run: pl.Run, kind: Kind) -> float:
    total_s = 0.0
    for spans in run.trace.spans:
        chosen = spans.of(kind)
        chosen = chosen[chosen["step"] >= WARM_UP]
        total_s += float((chosen["end_s"] - chosen["start_s"]).sum())
    return 1e3 * total_s / len(run.trace.spans) / (run.steps - WARM_UP)
