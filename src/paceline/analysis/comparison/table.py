"""The table of a comparison: figures of each entry, and their text for all outputs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from paceline.analysis.comparison.entry import YARDSTICK, Entry, what_differs
from paceline.analysis.diagnosis.peak import largest_bytes
from paceline.costs.units import format_bytes, format_seconds
from paceline.show.tables import NOTHING
from paceline.task.metrics import HIGHER

if TYPE_CHECKING:
    from paceline.runs.run import Run

__all__ = ["NOTHING", "Row", "brief", "cells", "columns", "mean_staleness", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one entry. Each is the median over its runs; None if there is no such figure."""

    name: str
    target: float | None = None
    """Target value of the metric."""
    better: str = HIGHER
    """Whether "higher" or "lower" values of the metric are better."""
    seconds: float | None = None
    """Seconds of the whole run."""
    seconds_to_target: float | None = None
    """Seconds to the target. None if half of the runs or more never reached it."""
    spread: tuple[float, float] | None = None
    """Smallest and largest time to the target over the runs (infinite if never reached); without a target, of the whole
    run. None for a single run."""
    steps: int | None = None
    samples_per_s: float | None = None
    metric: float | None = None
    """Value of the last evaluation."""
    other_metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Values of the other metrics, by name, if the task has several."""
    loss: float | None = None
    """Loss of the last step."""
    bytes_sent: int | None = None
    """Bytes sent by all ranks."""
    memory_bytes: int | None = None
    """Peak memory of the rank with the highest peak. None for runs saved by older versions."""
    compute_share: float | None = None
    communicate_share: float | None = None
    idle_share: float | None = None
    staleness: float | None = None
    """Mean over the applied gradients. None if the strategy counts no staleness."""
    speed_up: float | None = None
    """Speed-up over `single`: by the time to the target, or by samples per second without a target."""
    error: str | None = None
    """Reason that the entry has no figures."""

    @property
    def time_s(self) -> float | None:
        """Time to the target, or the seconds of the whole run without a target."""
        return self.seconds if self.target is None else self.seconds_to_target


def rows(entries: Sequence[Entry]) -> list[Row]:
    """Return one row for each entry, in the same order. There is no speed-up over a run of another task."""
    table = [_row(entry) for entry in entries]
    if what_differs(entries):
        return table
    alone = [row for row, entry in zip(table, entries, strict=True) if entry.strategy == YARDSTICK]
    return [replace(row, speed_up=_speed_up(row, alone[0])) if alone else row for row in table]


def columns(table: Sequence[Row]) -> list[str]:
    """Return the column titles. The columns depend on the figures that the rows have."""
    return [title for title, _ in _columns(table)]


def cells(row: Row, table: Sequence[Row]) -> list[str]:
    """Return the texts of a row, one for each of `columns(table)`."""
    return [text(row) for _, text in _columns(table)]


def mean_staleness(run: Run) -> float | None:
    """Return the mean over the applied gradients; None if the strategy counts no staleness."""
    updates = sum(run.staleness.values())
    return sum(stale * count for stale, count in run.staleness.items()) / updates if updates else None


def brief(error: str) -> str:
    """Return an error in one line: its location, and the last line of the traceback."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return " ".join(lines[:1] + lines[1:][-1:])


def _row(entry: Entry) -> Row:
    if not entry.runs:
        return Row(name=entry.name, error=entry.error)
    runs, target = entry.runs, entry.runs[0].target
    summaries = [run.trace.summary() for run in runs]
    seconds = [run.seconds for run in runs]
    to_target = [math.inf if run.seconds_to_target is None else run.seconds_to_target for run in runs]
    times = seconds if target is None else to_target
    return Row(
        name=entry.name,
        target=target,
        better=runs[0].better,
        seconds=_median(seconds),
        seconds_to_target=_median(to_target),
        spread=(min(times), max(times)) if len(runs) > 1 else None,
        steps=round(statistics.median(run.steps for run in runs)),
        samples_per_s=_median(_samples_per_s(run) for run in runs),
        metric=_median(run.metric for run in runs),
        other_metrics={name: _median(run.last(name) for run in runs) for name in runs[0].other_metrics},
        loss=_median(run.loss for run in runs),
        bytes_sent=round(statistics.median(sum(run.bytes_sent) for run in runs)),
        memory_bytes=_whole(_median(largest_bytes(run) for run in runs)),
        compute_share=_median(summary.compute_share for summary in summaries),
        communicate_share=_median(summary.communicate_share for summary in summaries),
        idle_share=_median(summary.idle_share for summary in summaries),
        staleness=_median(mean_staleness(run) for run in runs),
    )


def _samples_per_s(run: Run) -> float | None:
    return run.history[-1].samples / run.seconds if run.history and run.seconds > 0 else None


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median; None if it is not finite, or if a value is missing."""
    there = list(values)
    if any(value is None or math.isnan(value) for value in there):
        return None
    median = statistics.median(value for value in there if value is not None)
    return median if math.isfinite(median) else None


def _speed_up(row: Row, alone: Row) -> float | None:
    if row.target is None and alone.target is None:
        pair = (row.samples_per_s, alone.samples_per_s)
    else:
        pair = (alone.seconds_to_target, row.seconds_to_target)
    upper, lower = pair
    return upper / lower if upper is not None and lower else None


Column = tuple[str, Callable[[Row], str]]


def _columns(table: Sequence[Row]) -> list[Column]:
    """Return the columns. Time, metric, staleness and errors are included only if some row has them."""
    aims = any(row.target is not None for row in table)
    chosen: list[Column] = [("strategy", lambda row: row.name), ("to target" if aims else "time", _time)]
    chosen += [
        ("steps", lambda row: _number(row.steps, "d")),
        ("samples/s", lambda row: _number(row.samples_per_s, ",.0f")),
    ]
    if any(row.metric is not None for row in table):
        chosen.append(("metric", lambda row: _number(row.metric, ".4f")))
        names = dict.fromkeys(name for row in table for name in row.other_metrics)
        chosen += [(name, _other_metric(name)) for name in names]
    elif any(row.loss is not None for row in table):
        chosen.append(("loss", lambda row: _number(row.loss, ".4g")))
    chosen += [
        ("sent", lambda row: _bytes(row.bytes_sent)),
    ]
    if any(row.memory_bytes is not None for row in table):
        chosen.append(("memory", lambda row: _bytes(row.memory_bytes)))
    chosen += [
        ("compute", lambda row: _number(row.compute_share, ".0%")),
        ("communicate", lambda row: _number(row.communicate_share, ".0%")),
        ("idle", lambda row: _number(row.idle_share, ".0%")),
    ]
    if any(row.staleness is not None for row in table):
        chosen.append(("staleness", lambda row: _number(row.staleness, ".2f")))
    if any(row.speed_up is not None for row in table):
        chosen.append(("speed-up", lambda row: _number(row.speed_up, ".2f")))
    if any(row.error is not None for row in table):
        chosen.append(("failed", lambda row: brief(row.error or "")))
    return chosen


def _other_metric(name: str) -> Callable[[Row], str]:
    return lambda row: _number(row.other_metrics.get(name), ".4f")


def _time(row: Row) -> str:
    if row.time_s is None:
        return NOTHING if row.error is not None else "not reached"
    text = format_seconds(row.time_s)
    if row.spread is None:
        return text
    least_s, greatest_s = row.spread
    if not math.isfinite(greatest_s):
        return f"{text}, not always"
    return f"{text} ±{(greatest_s - least_s) / 2 / row.time_s if row.time_s else 0.0:.0%}"


def _bytes(count: int | None) -> str:
    return NOTHING if count is None else format_bytes(count)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
