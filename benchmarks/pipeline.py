"""Time of a pipeline step: ours against torch.distributed.pipelining on Gloo, and against no communication.

Both use the same transformer, cut at the same layer into 2 stages, 8 micro-batches, plain SGD, one thread per stage.

Two workers that do not communicate, each with the whole model and the same micro-batches, compute twice as much in a
step as two stages. Half of their step is the time that the stages would take without communication or waiting, with
both cores busy. A pipeline of 2 stages and 8 micro-batches takes at least 9/8 of that. The ratio of such a perfect
pipeline to torch's step is printed too. With the same kernels, no pipeline can have a lower ratio.

Two batch sizes are measured. With 32 sentences nearly all of a step is the same computation on both sides. With 8
sentences a micro-batch has one sentence, and the overhead matters.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import paceline as pl
from benchmarks.plain_torch import PlainTorch, join, obey
from benchmarks.result import Goal, Result, Row, compare
from benchmarks.rounds import rounds
from benchmarks.transformer import LAYERS, SAMPLES, build_transformer, make_sentences, token_loss

STAGES, MICRO_BATCHES = 2, 8
CUT = 1 + LAYERS // 2
ORDERS = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
BATCHES = (SAMPLES, MICRO_BATCHES)
"""Sentences per batch: micro-batches of 4 and of 1."""
ROUNDS, LIMIT_S = 7, 120.0
STEPS, WARM_UP = 8, 2
_FILLED = (MICRO_BATCHES + STAGES - 1) / MICRO_BATCHES
"""Ratio of the time of a pipeline that fills and drains to the time of one that is always full."""
_APART = "two workers without communication"


def measure() -> Result:
    result = Result(title="ms a step of an 11-million-parameter transformer", unit="ms", rows=[], goals=[])
    measured: dict[str, list[float]] = {}
    with PlainTorch(STAGES, _serve) as theirs:
        blocks: dict[str, Callable[[], float]] = {}
        for batch in BATCHES:
            blocks |= _blocks(batch, theirs)
        for number in rounds(ROUNDS, LIMIT_S):
            names = list(blocks)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                measured.setdefault(name, []).append(1e3 * blocks[name]())
    rows = {name: Row(what=name, rounds=measured[name]) for name in blocks}
    result.rows += rows.values()
    result.goals += [goal for batch in BATCHES for order in ORDERS for goal in _goals(rows, batch, order)]
    return result


def _blocks(batch: int, theirs: PlainTorch) -> dict[str, Callable[[], float]]:
    blocks: dict[str, Callable[[], float]] = {_name(batch, _APART): lambda: _run_apart(batch)}
    for order in ORDERS:
        blocks[_name(batch, f"ours, {order}")] = lambda order=order: _run_ours(batch, order)  # type: ignore[misc]
        key = _name(batch, order)
        blocks[_name(batch, f"torch, {order}")] = lambda key=key: _typical(theirs.run(key, STEPS)[-1])  # type: ignore[misc]
    return blocks


def _name(batch: int, what: str) -> str:
    return f"{batch} sentences, {what}"


def _goals(rows: Mapping[str, Row], batch: int, order: str) -> list[Goal]:
    apart, ours, torchs = (rows[_name(batch, who)] for who in (_APART, f"ours, {order}", f"torch, {order}"))
    half = Row(what="", rounds=[ms / STAGES for ms in apart.rounds])
    perfect = Row(what="", rounds=[ms * _FILLED for ms in half.rounds])
    what = _name(batch, f"{order}:")
    return [
        Goal(what=f"{what} ours / torch's", rounds=compare(ours, torchs), at_most=0.7),
        Goal(
            what=f"{what} a perfect pipeline (9/8 of no communication) / torch's",
            rounds=compare(perfect, torchs),
        ),
        Goal(what=f"{what} ours / no communication", rounds=compare(ours, half)),
    ]


def task(*, accumulate: int = 1, batch_size: int = SAMPLES) -> pl.Task:
    """Return the task: the transformer and its sentences."""
    return pl.Task(
        model=build_transformer,
        data=make_sentences,
        loss=token_loss,
        optimizer=_make_optimizer,
        batch_size=batch_size,
        accumulate=accumulate,
    )


def _make_optimizer(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def _run_ours(batch: int, order: str) -> float:
    spec = f"pipeline:stages={STAGES},microbatches={MICRO_BATCHES},order={order},cuts={CUT}"
    cluster = pl.Local(workers=STAGES, threads=1)
    run = pl.train(task(batch_size=batch), spec, cluster, steps=STEPS)
    return _typical([record.seconds for record in run.history])


def _run_apart(batch: int) -> float:
    """Run two workers that never communicate, each on its part of a batch that is twice as large."""
    cluster = pl.Local(workers=STAGES, threads=1)
    wide = task(accumulate=MICRO_BATCHES, batch_size=STAGES * batch)
    run = pl.train(wide, "local-sgd:period=1000000", cluster, steps=STEPS)
    return _typical([record.seconds for record in run.history])


def _typical(ends_s: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(ends_s[WARM_UP:]))


class _Stage:
    """One process of torch's pipeline."""

    def __init__(self, rank: int, batch: int, order: str) -> None:
        whole = build_transformer()
        self._part = whole[:CUT] if rank == 0 else whole[CUT:]
        self._optimizer = _make_optimizer(list(self._part.parameters()))
        stage = PipelineStage(self._part, rank, STAGES, torch.device("cpu"))
        self._schedule = ORDERS[order](stage, MICRO_BATCHES, loss_fn=token_loss)
        self._is_first, self._batch = rank == 0, batch
        self._words, self._targets = make_sentences()

    def run(self, steps: int) -> list[float]:
        ends_s = []
        for step in range(steps):
            chosen = slice(step % 8 * self._batch, (step % 8 + 1) * self._batch)
            self._optimizer.zero_grad()
            if self._is_first:
                self._schedule.step(self._words[chosen])
            else:
                self._schedule.step(target=self._targets[chosen])
            self._optimizer.step()
            ends_s.append(time.monotonic())
        return ends_s


def _serve(rank: int, workers: int, meeting_point: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    join(rank, workers, meeting_point)
    stages = {_name(batch, order): _Stage(rank, batch, order) for batch in BATCHES for order in ORDERS}
    obey(pipe, stages)
