"""Goodput of a simulated run with random failures: useful steps per second, relative to the run without failures."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from paceline.checking.check import checkpoint_seconds
from paceline.clusters.simulated.simulated import Simulated
from paceline.costs.intervals import best_interval_s, daly_s, simulated_goodput
from paceline.costs.times import Constant
from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError, PeerLost
from paceline.faults import Random
from paceline.runs.run import Run
from paceline.task.task import Task
from paceline.training import train


@dataclass(frozen=True, kw_only=True, slots=True)
class Survival:
    """A run that continues without lost workers."""

    goodput: float
    """0 if the run ended before its last step."""
    lost: int
    """Number of lost workers."""
    refusal: str = ""
    """Why there is no such run: the strategy refuses `min_workers`, or too few workers were left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Goodput with and without `restart`, and of a run that ends with each failure and resumes from its checkpoint."""

    min_workers: int
    without_restart: Survival
    with_restart: Survival
    checkpoint_s: float
    """Seconds that this disk takes to write a checkpoint."""
    interval_s: float
    """Best seconds between checkpoints."""
    daly_s: float
    """The same by the formula of Young and Daly."""
    resumed: float
    """Goodput of a run with this interval that resumes after each failure."""

    def lines(self) -> dict[str, str]:
        """Return the figures as text."""
        fewest = f"goodput, min_workers={self.min_workers}"
        return {
            fewest: _words(self.without_restart),
            f"{fewest}, restart": _words(self.with_restart),
            "goodput, resumed": f"{self.resumed:.1%} with checkpoint_every={format_seconds(self.interval_s)}, "
            f"the best (Young, Daly: {format_seconds(self.daly_s)}; "
            f"a checkpoint takes {format_seconds(self.checkpoint_s)} on this disk)",
        }


def goodput_of(task: Task, strategy: str, cluster: Simulated, **options: Any) -> Goodput:
    """Simulate a run with and without its faults, which contain a `Random`. `options` are those of `train`."""
    mean_s = min(fault.mean_s for fault in cluster.faults if isinstance(fault, Random))
    times_only = cluster.compute is not None or cluster.device is not None
    cluster = dataclasses.replace(cluster, math="none" if times_only else cluster.math, restart=False)
    calm = train(task, strategy, dataclasses.replace(cluster, faults=(), min_workers=None), **options)
    elastic = dataclasses.replace(cluster, min_workers=cluster.min_workers or 1)
    written_s = _checkpoint_s(task)
    interval_s = best_interval_s(written_s, mean_s)
    return Goodput(
        min_workers=elastic.min_workers or 1,
        without_restart=_survival(task, strategy, elastic, calm, options),
        with_restart=_survival(task, strategy, dataclasses.replace(elastic, restart=True), calm, options),
        checkpoint_s=written_s,
        interval_s=interval_s,
        daly_s=daly_s(written_s, mean_s),
        resumed=simulated_goodput(interval_s, written_s, mean_s),
    )


def _survival(task: Task, strategy: str, cluster: Simulated, calm: Run, options: dict[str, Any]) -> Survival:
    try:
        run = train(task, strategy, cluster, **options)
    except PeerLost as loss:
        return Survival(goodput=0.0, lost=0, refusal=loss.reason)
    except ConfigurationError as refused:
        return Survival(goodput=0.0, lost=0, refusal=f"{refused.argument} {refused.bound}")
    return Survival(goodput=calm.seconds / run.seconds, lost=len(run.lost))


def _checkpoint_s(task: Task) -> float:
    """Return the seconds to write the parameters and the optimizer's state to this disk."""
    alone = Simulated(workers=1, compute=Constant(1.0), math="none")
    memory = train(task, "single", alone, steps=1).memory[0]
    return checkpoint_seconds(memory["parameters"] + memory["optimizer"]) or 0.0


def _words(one: Survival) -> str:
    if one.refusal:
        return f"the run ends: {one.refusal}"
    lost = f"{one.lost} worker{'s' * (one.lost != 1)} lost" if one.lost else "no worker was lost in this time"
    return f"{one.goodput:.1%} of a run without failures, {lost}"
