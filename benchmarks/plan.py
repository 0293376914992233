"""Accuracy of predictions on this machine: 24 configurations, predicted before they are measured.

Six clusters, each with four strategies. Four clusters are emulated: gradients take given times (workers sleep for the
rest), and links are emulated. So these configurations can be measured on a busy machine. Two clusters are plain
`pl.Local`, with 2 and with 4 workers. They are predicted with a calibration that is measured just before. A virtual
machine changes its speed within minutes: the time of a gradient is measured again after the runs, and the change is
printed.

Compared are the seconds per batch of samples, because an update of some strategies uses a part of a batch. The regret
of a cluster is how much slower the strategy with the best prediction is than the best one measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

import paceline as pl
from benchmarks import mlp
from benchmarks.result import Goal, Result, Row
from paceline.planner.calibrating.compute import ComputeProgram, costs_of

PARTS = ("emulated", "local")
MEDIAN, P90 = 0.07, 0.2
REGRET, WORST_REGRET = 0.05, 0.15
_ROUNDS = 2
_RUN_S = 2.5
"""Seconds of a run, as predicted."""
_FEWEST, _MOST, _SKIPPED = 12, 150, 4
"""Steps of a run, and those at its beginning that are not counted."""
_CALIBRATION_S = 25.0
_BATCH = 256


def _small_task() -> pl.Task:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    return pl.Task(
        model=model,
        data=(torch.randn(512, 64), torch.randn(512, 8)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=32,
    )


def _task() -> pl.Task:
    return pl.Task(
        model=mlp.build_model,
        data=lambda: mlp.make_data(4),
        loss=mlp.cross_entropy,
        optimizer=mlp.make_optimizer,
        batch_size=_BATCH,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A cluster, and the strategies to choose from."""

    name: str
    strategies: Sequence[str]
    workers: int
    emulated: Mapping[str, object] | None = None
    """Arguments of the emulated and of the simulated cluster. None for plain local workers."""

    def task(self) -> pl.Task:
        return _small_task() if self.emulated is not None else _task()

    def real(self) -> pl.Local:
        options = {} if self.emulated is None else dict(self.emulated)
        return pl.Local(workers=self.workers, **options)  # type: ignore[arg-type]

    def simulated(self, calibration: pl.Calibration | None) -> pl.Simulated:
        options = {"calibration": calibration} if self.emulated is None else dict(self.emulated)
        return pl.Simulated(workers=self.workers, math="none", **options)


GROUPS = (
    Group(
        name="4 workers, 1 Gbit/s",
        strategies=("all-reduce", "sync", "local-sgd:period=4", "decentralized"),
        workers=4,
        emulated={"compute": pl.times.Constant("30ms"), "link": pl.Link("1Gbps", "200us")},
    ),
    Group(
        name="4 workers, 100 Mbit/s, random times",
        strategies=("all-reduce", "k-sync:k=3", "async", "local-sgd:period=4"),
        workers=4,
        emulated={"compute": pl.times.ShiftedExponential("30ms", "15ms"), "link": pl.Link("100Mbps", "1ms")},
    ),
    Group(
        name="4 workers, one 4x slow",
        strategies=("all-reduce", "k-sync:k=3", "async", "ssp:staleness=2"),
        workers=4,
        emulated={"compute": pl.times.Constant("25ms"), "link": pl.Link("1Gbps", "200us"), "slow": {3: 4.0}},
    ),
    Group(
        name="2 workers, 10 Gbit/s",
        strategies=("all-reduce", "zero:stage=2", "pipeline:stages=2,microbatches=4", "sync"),
        workers=2,
        emulated={"compute": pl.times.Constant("60ms"), "link": pl.Link("10Gbps", "50us")},
    ),
    Group(
        name="2 local workers",
        strategies=("all-reduce", "sync", "zero:stage=2", "pipeline:stages=2,microbatches=4"),
        workers=2,
    ),
    Group(
        name="4 local workers",
        strategies=("all-reduce", "async", "local-sgd:period=4", "decentralized"),
        workers=4,
    ),
)


def measure(parts: Sequence[str] = PARTS) -> Result:
    rows: list[Row] = []
    errors: list[float] = []
    regrets: list[float] = []
    notes: list[str] = []
    for group in GROUPS:
        if ("local" if group.emulated is None else "emulated") in parts:
            predicted, measured = _measure_group(group, notes)
            rows += _rows(group, predicted, measured)
            errors += [
                abs(predicted[name] / statistics.median(measured[name]) - 1) for name in group.strategies
            ]
            regrets.append(_regret(predicted, measured))
    return Result(
        title=f"ms per batch of {len(errors)} configurations, predicted before they are measured",
        unit="ms",
        rows=rows,
        goals=[
            Goal(what="error, median", rounds=[statistics.median(errors)], at_most=MEDIAN),
            Goal(what="error, 90th percentile", rounds=[_percentile(errors, 0.9)], at_most=P90),
            Goal(what="regret, median", rounds=[statistics.median(regrets)], at_most=REGRET),
            Goal(what="regret, worst", rounds=[max(regrets)], at_most=WORST_REGRET),
        ],
        notes=notes,
    )


def _measure_group(group: Group, notes: list[str]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the predicted seconds of a batch by strategy, and those measured in each round."""
    calibration = None
    if group.emulated is None:
        calibration = pl.calibrate(group.real(), group.task(), seconds=_CALIBRATION_S)
    steps = dict.fromkeys(group.strategies, _FEWEST + _SKIPPED)
    predicted = {}
    for name in group.strategies:
        run = pl.train(group.task(), name, group.simulated(calibration), steps=_MOST)
        predicted[name] = _batch_s(run, group.task().batch_size)
        wanted = round(_RUN_S / max(run.step_seconds, 1e-6))
        steps[name] = _SKIPPED + min(_MOST, max(_FEWEST, wanted))
    measured: dict[str, list[float]] = {name: [] for name in group.strategies}
    for _ in range(_ROUNDS):
        for name in group.strategies:
            run = pl.train(group.task(), name, group.real(), steps=steps[name])
            measured[name].append(_batch_s(run, group.task().batch_size))
    if calibration is not None:
        notes.append(
            f"{group.name}: gradients took {_drift(group, calibration):.2f} times as long afterwards"
        )
    return predicted, measured


def _batch_s(run: pl.Run, batch_size: int) -> float:
    """Return the seconds per batch, without the first steps."""
    first, last = run.history[_SKIPPED - 1], run.history[-1]
    return (last.seconds - first.seconds) / (last.samples - first.samples) * batch_size


def _drift(group: Group, calibration: pl.Calibration) -> float:
    """Return the seconds of a gradient now, divided by those of the calibration."""
    known = calibration.compute_of(group.workers)
    program = ComputeProgram(task=group.task(), counts=[1], limit_s=1.0)
    local = pl.Local(workers=1, threads=known.threads)
    now, _ = costs_of(known.threads, [1], pl.run_program(program, local).results, calibration.cores)
    return now.seconds[-1] / known.seconds[-1]


def _regret(predicted: Mapping[str, float], measured: Mapping[str, Sequence[float]]) -> float:
    chosen = min(predicted, key=lambda name: predicted[name])
    seconds = {name: statistics.median(each) for name, each in measured.items()}
    return seconds[chosen] / min(seconds.values()) - 1


def _rows(group: Group, predicted: Mapping[str, float], measured: Mapping[str, Sequence[float]]) -> list[Row]:
    rows = []
    for name in group.strategies:
        error = predicted[name] / statistics.median(measured[name]) - 1
        found = [1e3 * seconds for seconds in measured[name]]
        rows.append(
            Row(what=f"{group.name}: {name}, predicted ({error:+.0%})", rounds=[1e3 * predicted[name]])
        )
        rows.append(Row(what=f"{group.name}: {name}, measured", rounds=found))
    return rows


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
