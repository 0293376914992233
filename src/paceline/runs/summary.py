"""Summaries of a run: one line, five lines, or HTML for a notebook."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.costs.units import format_seconds
from paceline.runs.metric_name import metric_name_in
from paceline.show import markup

if TYPE_CHECKING:
    from paceline.runs.run import Run

_SHARES = {"compute": "computing", "communicate": "communicating", "update": "updating", "idle": "idle"}
_RARE_SHARES = {
    "evaluate": "evaluating and preparing",
    "cancelled": "computing cancelled gradients",
    "sleep": "sleeping",
}
"""Shown only if they round to at least one percent."""


def in_short(run: Run) -> str:
    """Return a summary of one line."""
    words = [f"{run.steps:,} steps in {format_seconds(run.seconds)}", *_result_words(run)]
    return f"<Run {run.strategy} on {run.cluster}: {', '.join(words)}>"


def as_lines(run: Run) -> dict[str, str]:
    """Return strategy, seconds, steps, loss, metric, target and shares of time. Unknown entries are left out."""
    passes = "" if run.epochs is None else f", {run.epochs:.4g} epoch{'s' if run.epochs != 1 else ''}"
    samples = run.history[-1].samples if run.history else 0
    lines = {
        "strategy": f"{run.strategy} on {run.cluster}",
        "seconds": f"{run.seconds:.3f} ({format_seconds(run.step_seconds)} a step)",
        "steps": f"{run.steps} ({samples:,} samples{passes})",
    }
    return lines | _results(run) | {"time": _time_words(run)} | changes_of_members(run)


def changes_of_members(run: Run) -> dict[str, str]:
    """Return for each change of members who was lost or joined, when, what was repeated, and when the run continued."""
    found = {}
    for each in run.generations[1:]:
        words = [f"rank {rank} lost" for rank in each.lost] + [f"rank {rank} joined" for rank in each.joined]
        words.append(f"{each.repeated_steps} step{'s' * (each.repeated_steps != 1)} repeated")
        words.append(f"{len(each.members)} ranks from step {each.first_step}")
        words.append(f"agreed {format_seconds(each.began_s - each.detected_s)} later")
        done_s = next((record.seconds for record in run.history if record.seconds > each.began_s), None)
        if done_s is not None:
            words.append(f"next step complete {format_seconds(done_s - each.detected_s)} later")
        found[f"generation {each.number}"] = f"at {format_seconds(each.detected_s)}: {', '.join(words)}"
    return found


def as_text(run: Run) -> str:
    """Return a summary of five lines."""
    lines = as_lines(run)
    kept = {name: lines[name] for name in ("strategy", "seconds", "steps")}
    results = ", ".join(_result_words(run)) or "no tensor math"
    return aligned(kept | {"result": results, "time": lines["time"]})


def aligned(lines: dict[str, str]) -> str:
    """Return the names and texts of the lines in two columns."""
    width = max(map(len, lines)) + 2
    return "\n".join(f"{name:<{width}}{text}" for name, text in lines.items())


def as_html(run: Run) -> str:
    """Return the lines as a table, and the curves of loss and metric."""
    seconds = [record.seconds for record in run.history]
    lines = (
        markup.Line("loss", seconds, [record.loss for record in run.history]),
        markup.Line(metric_name(run), seconds, [record.metric for record in run.history]),
    )
    curves = [markup.chart(line.name, [line], format_seconds(run.seconds)) for line in lines]
    return markup.table((), [list(line) for line in as_lines(run).items()]) + "".join(curves)


def _time_words(run: Run) -> str:
    """Return the shares of the total time in the trace."""
    share = run.trace.summary().share
    told = _SHARES | {part: word for part, word in _RARE_SHARES.items() if share(part) >= 0.005}
    return ", ".join(f"{word} {share(part):.0%}" for part, word in told.items())


def metric_name(run: Run) -> str:
    """Return the name of the task's metric; "metric" if it has no name."""
    return metric_name_in(run.fingerprint)


def _result_words(run: Run) -> list[str]:
    return [f"{name} {text}" for name, text in _results(run).items()]


def _results(run: Run) -> dict[str, str]:
    """Return loss, metric and target as text."""
    found = {}
    if math.isfinite(run.loss):
        found["loss"] = f"{run.loss:.6g}"
    if run.metric is not None:
        found[metric_name(run)] = f"{run.metric:.4f}"
    if run.target is not None:
        reached_s = run.seconds_to_target
        when = "not reached" if reached_s is None else f"reached after {format_seconds(reached_s)}"
        found["target"] = f"{run.target:g} {when}"
    return found
