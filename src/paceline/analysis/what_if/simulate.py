"""Simulate a run with a change: the costs are those that its trace shows."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.analysis.what_if.recorded import Recorded, check_slow, recorded, stand_in_task
from paceline.analysis.what_if.replayed import link_change, replayed_ratio
from paceline.clusters.base.declarations import Declarations
from paceline.clusters.simulated.simulated import Simulated
from paceline.context import Strategy
from paceline.costs.calibrated_costs import ComputeCosts, LinkCosts
from paceline.costs.calibration import SHARED_MEMORY, WINDOW, Calibration
from paceline.costs.link import Link
from paceline.costs.times import Trace
from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError
from paceline.strategies import parse
from paceline.system.environment import machine
from paceline.task.fingerprint import fingerprint
from paceline.task.task import Task
from paceline.trace.spans import COMPUTING, PASSES
from paceline.training import train

if TYPE_CHECKING:
    from paceline.runs.run import Run

_STEPS = 200
"""Most steps of a simulation. Gradients are drawn from those recorded, so that more steps would change little."""
_SKIPPED = 0.1
"""Fraction of the steps that are not counted: the first ones are not in the steady state."""
_MANY = 10**6
_FAR_OFF = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The step of a run, and that of the same run with a change."""

    changes: tuple[str, ...]
    recorded_s: float
    """Seconds of a step of the run."""
    step_s: float
    """Predicted seconds of a step with the changes."""
    residual: float | None = None
    """Relative error of the simulation without the changes. The prediction is corrected by it. None if the trace was
    replayed."""
    assumed: str = ""
    """Assumption about the work of the ranks, if the trace was replayed."""

    @property
    def ratio(self) -> float:
        """Predicted seconds divided by those of the run."""
        return self.step_s / self.recorded_s

    def __str__(self) -> str:
        words = f"{', '.join(self.changes)}: {format_seconds(self.step_s)} a step instead of "
        words += f"{format_seconds(self.recorded_s)} ({self.ratio - 1:+.0%})"
        if self.residual is None:
            return f"{words}; the trace was replayed, as if {self.assumed}"
        words += f"; the simulation of the run itself is off by {self.residual:+.0%}"
        return words + (", so expect an error of this size" if abs(self.residual) > _FAR_OFF else "")

    def as_dict(self) -> dict[str, object]:
        """Return the figures as a dictionary for JSON."""
        return dataclasses.asdict(self) | {"ratio": self.ratio}


def what_if(
    run: Run,
    *,
    without_slow: int | None = None,
    bandwidth: str | float | None = None,
    latency: str | float | None = None,
    workers: int | None = None,
    strategy: str | Strategy | None = None,
) -> WhatIf:
    """Predict the step of a run with some changes, from its trace.

    `without_slow`: this rank computes as fast as the median of the others. `bandwidth` and `latency` replace those of
    the links. With other `workers` each gradient takes time in proportion to its samples, unless its time was given
    (an emulated or simulated cluster with `compute`).
    """
    changes = _changes(without_slow, bandwidth, latency, workers, strategy)
    if without_slow is not None:
        _check_rank(run, without_slow)
    splits = any(len(each.of(*PASSES)) for each in run.trace.spans)
    if splits and workers is None and strategy is None:
        change = link_change(run, bandwidth, latency)
        ratio, assumed = replayed_ratio(run, without_slow, change)
        step_s = run.step_seconds * ratio
        return WhatIf(changes=changes, recorded_s=run.step_seconds, step_s=step_s, assumed=assumed)
    found, task = recorded(run), stand_in_task(run)
    before_s = _simulated_s(run, task, run.strategy, _cluster(found, task, found.gradients_s))
    gradients = _changed(found, without_slow, workers)
    chosen = run.strategy if strategy is None else strategy
    if Declarations.of(parse(chosen)).cuts_model:
        remedy = "predict it with pl.predict and the task"
        raise ConfigurationError("strategy", "must be one that computes whole gradients", chosen, remedy)
    after_s = _simulated_s(run, task, chosen, _cluster(found, task, gradients, bandwidth, latency))
    return WhatIf(
        changes=changes,
        recorded_s=run.step_seconds,
        step_s=_corrected_s(run.step_seconds, before_s, after_s),
        residual=before_s / run.step_seconds - 1,
    )


def _corrected_s(recorded_s: float, before_s: float, after_s: float) -> float:
    """Correct a prediction by the error of the simulation of the run itself.

    What the simulation lacks is mostly an overhead of each step, which a change leaves as it is. If the simulation is
    too slow, its error is taken as a factor.
    """
    if before_s <= recorded_s:
        return after_s + (recorded_s - before_s)
    return after_s * recorded_s / before_s


def _without(rank: int | None) -> str:
    return f"rank {rank} as fast as the others"


def _changes(
    without_slow: int | None,
    bandwidth: str | float | None,
    latency: str | float | None,
    workers: int | None,
    strategy: str | Strategy | None,
) -> tuple[str, ...]:
    Link(*(each for each in (bandwidth,) if each is not None))  # raises an error for a wrong bandwidth
    words = [_without(without_slow)] if without_slow is not None else []
    words += [f"links of {bandwidth}"] if bandwidth is not None else []
    words += [f"latency {latency}"] if latency is not None else []
    words += [f"{workers} workers"] if workers is not None else []
    words += [f"strategy {strategy}"] if strategy is not None else []
    if not words:
        remedy = "give without_slow, bandwidth, latency, workers or strategy"
        raise ConfigurationError("changes", "must be at least one", None, remedy)
    return tuple(words)


def _check_rank(run: Run, rank: int) -> None:
    known = [each.rank for each in run.trace.spans if len(each.of(*COMPUTING))]
    if rank not in known:
        bound = f"must be one of the ranks that compute: {', '.join(map(str, known)) or 'none'}"
        raise ConfigurationError("without_slow", bound, rank)


def _changed(found: Recorded, without_slow: int | None, workers: int | None) -> Mapping[int, Sequence[float]]:
    """Return the seconds of the gradients of each rank after the change."""
    gradients = {rank: list(seconds) for rank, seconds in found.gradients_s.items()}
    if without_slow is not None:
        factor = found.slowness(without_slow)
        check_slow(without_slow, factor)
        gradients[without_slow] = [seconds / factor for seconds in gradients[without_slow]]
    if workers is None:
        return gradients
    if workers < 1:
        raise ConfigurationError("workers", "must be at least 1", workers)
    scale = 1.0 if found.is_emulated else found.workers / workers
    ranks = list(gradients)
    middle = sorted(ranks, key=lambda rank: statistics.median(gradients[rank]))[(len(ranks) - 1) // 2]
    # Additional ranks are like the one with the median time.
    of = [ranks[rank] if rank < len(ranks) else middle for rank in range(workers)]
    return {rank: [scale * seconds for seconds in gradients[source]] for rank, source in enumerate(of)}


def _cluster(
    found: Recorded,
    task: Task,
    gradients: Mapping[int, Sequence[float]],
    bandwidth: str | float | None = None,
    latency: str | float | None = None,
) -> Simulated:
    """Return a simulation in which each gradient takes one of the seconds of its rank."""
    workers, link = len(gradients), found.link or Link.ideal()
    if bandwidth is not None or latency is not None:
        given = link.bandwidth if bandwidth is None else bandwidth
        link = Link(given, link.latency if latency is None else latency)
    shares_memory = found.window is not None and bandwidth is None and latency is None
    made = _calibration(found, task, workers, link)
    delay = {rank: Trace(seconds) for rank, seconds in enumerate(gradients.values())}
    where = SHARED_MEMORY if shares_memory else link
    return Simulated(workers=workers, threads=1, math="none", link=where, delay=delay, calibration=made)


def _calibration(found: Recorded, task: Task, workers: int, link: Link) -> Calibration:
    compute = ComputeCosts(
        threads=1,
        slowdown={1: 1.0, _MANY: 1.0},  # the recorded seconds contain it
        update_s=found.update_s,
        update_bytes=found.update_bytes,
    )
    links = [_costs(SHARED_MEMORY, link)] + (
        [_costs(WINDOW, found.window)] if found.window is not None else []
    )
    return Calibration(
        machine=machine(),
        workers=workers,
        compute=(compute,),
        links=tuple(links),
        task=fingerprint(task, task.build_model(0), samples=0, test_samples=0),
    )


def _costs(kind: str, link: Link) -> LinkCosts:
    return LinkCosts(
        kind=kind,
        ranks=2,
        latency_s=link.latency_s,
        message_s=link.message_s,
        bytes_per_s=link.bytes_per_s,
        sizes_bytes=(1,),
        seconds=(link.seconds(1) or 1e-12,),
    )


def _simulated_s(run: Run, task: Task, strategy: str | Strategy, cluster: Simulated) -> float:
    """Return the seconds of a step in the steady state."""
    steps = max(2, min(_STEPS, run.steps))
    ends_s = [record.seconds for record in train(task, strategy, cluster, steps=steps, seed=run.seed).history]
    first = int(_SKIPPED * len(ends_s))
    return (ends_s[-1] - ends_s[first]) / (len(ends_s) - 1 - first)
