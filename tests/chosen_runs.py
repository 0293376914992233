"""Runs with chosen figures, for tests of tables and summaries."""

import dataclasses

from tasks import a_task, simulated

import paceline as pl
from paceline.analysis.comparison.entry import Entry
from paceline.runs.run import Record


def run_of(strategy, workers=4, steps=10, **cluster):
    return pl.train(a_task(), strategy, simulated(workers, math="none", **cluster), steps=steps)


def with_figures(run, *, strategy=None, metrics=(), target=None, step_s=1.0, samples=8, **changes):
    """Return a run with one record for each metric, `step_s` seconds and `samples` samples apart."""
    history = [
        Record(step=n, seconds=n * step_s, loss=1.0 / n, metric=metric, samples=n * samples, bytes=100 * n)
        for n, metric in enumerate(metrics, start=1)
    ]
    return dataclasses.replace(
        run,
        strategy=strategy or run.strategy,
        history=history,
        seconds=len(history) * step_s,
        target=target,
        **changes,
    )


def entry(*runs, name=None):
    return Entry(name=name or runs[0].strategy, runs=tuple(runs))
