"""What a run came to, in a few lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.run import Run
    from paceline.task import Task

__all__ = ["result_text"]


def result_text(run: Run, task: Task) -> str:
    """Strategy, seconds, steps, loss, metric, target and shares of time, one a line; then who is slow."""
    from paceline.costs.units import format_seconds

    lines = {
        "strategy": f"{run.strategy} on {run.cluster}",
        "seconds": f"{run.seconds:.3f} ({format_seconds(run.step_seconds)} a step)",
        "steps": f"{run.steps}",
    }
    if math.isfinite(run.loss):
        lines["loss"] = f"{run.loss:.6g}"
    if run.metric is not None:
        lines[_metric_name(task)] = f"{run.metric:.4f}"
    for name in run.other_metrics:
        if (value := run.last(name)) is not None:
            lines[name] = f"{value:.4f}"
    if run.target is not None:
        reached_s = run.seconds_to_target
        when = "not reached" if reached_s is None else f"reached after {format_seconds(reached_s)}"
        lines["target"] = f"{run.target:g} {when}"
    lines["time"] = _shares(run)
    width = max(map(len, lines)) + 2
    told = [f"{name:<{width}}{value}" for name, value in lines.items()]
    return "\n".join([*told, *_diagnosis(run)])


def _diagnosis(run: Run) -> list[str]:
    """Who is slow. Not of a run in which one rank computes alone."""
    from paceline.diagnosis.diagnose import diagnose
    from paceline.diagnosis.words import sentences

    found = diagnose(run)
    return ["", *sentences(found)] if found.compute is not None else []


def _metric_name(task: Task) -> str:
    name, metric = next(iter(task.metrics().items()), ("metric", None))
    if name != "metric" or metric is None:
        return name
    return metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)


def _shares(run: Run) -> str:
    summary = run.trace.summary()
    shares = {"compute": "computing", "communicate": "communicating", "update": "updating", "idle": "idle"}
    return ", ".join(f"{word} {summary.share(part):.0%}" for part, word in shares.items())
