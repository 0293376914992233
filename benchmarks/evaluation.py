"""Time of an evaluation shared by 2 workers, against an evaluation by the first worker only.

Both are runs of all-reduce in processes with one thread each, in alternation. The seconds of an evaluation are taken
from the reporter's trace: evaluating test batches, waiting for the other worker, and merging the parts. The first
evaluation of a run is skipped, because it accesses the test samples for the first time. The smallest case shows the
cost of sharing: it has two test batches and a model that takes almost no time.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import paceline as pl
from benchmarks.mlp import build_model, cross_entropy, make_optimizer
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from paceline.strategies.all_reduce import AllReduce
from paceline.trace import Kind

WORKERS = 2
ROUNDS = 7
LIMIT_S = 30.0
STEPS = 6
BATCH = 512  # test samples per batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone(AllReduce):
    """All-reduce in which the first worker evaluates alone."""

    in_step: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its number of test batches."""

    model: Callable[[], nn.Module]
    width: int
    batches: int
    at_most: float | None

    def task(self) -> pl.Task:
        return pl.Task(
            model=self.model,
            data=lambda: _samples(64, self.width),
            loss=cross_entropy,
            optimizer=make_optimizer,
            batch_size=64,
            test=lambda: _samples(self.batches * BATCH, self.width),
            test_batch_size=BATCH,
            metric={"accuracy": "accuracy", "loss": "loss"},
        )


def measure() -> Result:
    result = Result(title=f"an evaluation by {WORKERS} workers", unit="ms", rows=[], goals=[])
    for name, case in _cases().items():
        task, alone_s, shared_s = case.task(), [], []
        for _ in rounds(ROUNDS, LIMIT_S / len(_cases())):
            alone_s.append(_seconds(task, Alone()))
            shared_s.append(_seconds(task, AllReduce()))
        alone = Row(what=f"{name}: alone", rounds=[1e3 * s for s in alone_s])
        shared = Row(what=f"{name}: shared", rounds=[1e3 * s for s in shared_s])
        result.rows += [alone, shared]
        result.goals.append(
            Goal(what=f"{name}: shared / alone", rounds=compare(shared, alone), at_most=case.at_most)
        )
    return result


def _seconds(task: pl.Task, strategy: AllReduce) -> float:
    """Return the median seconds of the evaluations of a run."""
    cluster = pl.Local(workers=WORKERS, threads=1)
    run = pl.train(task, strategy, cluster, steps=STEPS, evaluate_every=1)
    by_step: dict[int, float] = defaultdict(float)
    for span in run.trace.spans[0].of(Kind.EVALUATE):
        by_step[int(span["step"])] += float(span["end_s"] - span["start_s"])
    return statistics.median(seconds for step, seconds in by_step.items() if step)


def _cases() -> dict[str, Case]:
    return {
        "MLP, 8 test batches": Case(build_model, 784, 8, 0.65),
        "the same with BatchNorm": Case(_with_batch_norm, 784, 8, 0.65),
        "a linear model, 2 test batches": Case(lambda: nn.Linear(8, 10), 8, 2, None),
    }


def _with_batch_norm() -> nn.Module:
    layers = list(build_model())  # type: ignore[call-overload]
    return nn.Sequential(layers[0], nn.BatchNorm1d(1024), *layers[1:])


def _samples(count: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(count, width, generator=chance), torch.randint(0, 10, (count,), generator=chance)
