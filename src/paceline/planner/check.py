"""Run the best entries of a plan: local workers, real or emulated."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.clusters.local.emulation import OVERRUNS
from paceline.clusters.local.local import Local
from paceline.costs.calibration import SHARED_MEMORY
from paceline.costs.description import ClusterDescription
from paceline.costs.times import Constant
from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError, PacelineError
from paceline.planner.entry import Entry
from paceline.planner.predict import predict
from paceline.planner.sizing import resized, with_workers
from paceline.planner.target_time import evaluation_interval
from paceline.run_length import count_updates
from paceline.runs.run import Run
from paceline.show import markup
from paceline.show.tables import NOTHING, plain_table
from paceline.strategies import parse
from paceline.training import roles_of, train

if TYPE_CHECKING:
    from paceline.planner.plan import Plan

TOP = 3
_MOST_PROCESSES = 32
_BATCHES = 16
_DRIFT = 1.2
"""A machine whose gradients take this many times as long as in its calibration is mentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One entry, and its measured time."""

    entry: Entry
    predicted_s: float
    """Seconds to the target with the seed of the run, or of one batch if the plan has no times to the target."""
    measured_s: float | None
    """None if the run failed or missed the target."""
    reason: str = ""
    """The reason that there is no measured time."""
    run: Run | None = field(default=None, repr=False, compare=False)
    """None if it failed."""

    slowness: float | None = None
    """Seconds of gradients in the run, divided by those predicted from a calibration. None without a calibration."""

    @property
    def error(self) -> float | None:
        """Relative difference of the measured from the predicted time; negative if shorter."""
        return None if self.measured_s is None else self.measured_s / self.predicted_s - 1

    @property
    def overruns(self) -> str:
        """Gradients that took longer than on the emulated machines. Empty if they do not matter."""
        return "" if self.run is None else self.run.environment.get(OVERRUNS, "")

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as a dictionary for JSON."""
        return {
            "entry": self.entry.as_dict(),
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "error": self.error,
            "reason": self.reason,
            "overruns": self.overruns,
            "slowness": self.slowness,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Check:
    """Predicted and measured times. Its text is a table."""

    cluster: str
    what: str
    rows: tuple[Checked, ...]

    @property
    def largest_error(self) -> float | None:
        """Largest relative difference; None if nothing could be measured."""
        return max((abs(row.error) for row in self.rows if row.error is not None), default=None)

    @property
    def summary(self) -> list[str]:
        """Sentences: the largest difference, and runs in which this machine was slower than the emulated ones."""
        largest = self.largest_error
        said = [] if largest is None else [f"Predicted and measured differ by at most {largest:.1%}."]
        factors = [row.slowness for row in self.rows if row.slowness is not None]
        if factors and not 1 / _DRIFT < (factor := statistics.median(factors)) < _DRIFT:
            said.append(
                f"Gradients took {factor:.2f} times as long as in the calibration: other processes use this machine, "
                "or its speed has changed."
            )
        return [*said, *(f"{row.entry}: {row.overruns}." for row in self.rows if row.overruns)]

    @property
    def header(self) -> list[str]:
        """Column titles."""
        return ["strategy", "workers", "predicted", "measured", "error"]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as texts."""
        return [
            [
                row.entry.strategy,
                str(row.entry.workers),
                format_seconds(row.predicted_s),
                NOTHING if row.measured_s is None else format_seconds(row.measured_s),
                row.reason if row.error is None else f"{100 * row.error:+.1f} %",
            ]
            for row in self.rows
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a dictionary for JSON."""
        return {"cluster": self.cluster, "what": self.what, "rows": [row.as_dict() for row in self.rows]}

    def __str__(self) -> str:
        table = plain_table(self.header, self.cells)
        return "\n".join([f"{self.what}, on {self.cluster}", table, "", *self.summary])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return markup.table(self.header, self.cells) + markup.items(self.summary)


def check(
    plan: Plan,
    *,
    top: int = TOP,
    entries: Sequence[Entry | int | str] = (),
    steps: int | None = None,
    epochs: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Check:
    """Run the best `top` entries, or the given ones, and compare predicted with measured times.

    A plan for local workers is checked with them. Another cluster is emulated by local workers: its links, stragglers
    and seconds of gradients. Each run ends at the target, or after `epochs` (default: those of the plan). Without times
    to the target it ends after `steps` updates.
    """
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        raise ConfigurationError("top", "must be a whole number of at least 1", top)
    chosen = [plan.entry(each) for each in entries] or plan.ranked[:top]
    for entry in chosen:
        _check_possible(plan, entry)
    rows = []
    for entry in chosen:
        if progress is not None:
            progress(str(entry))
        rows.append(_checked(plan, entry, steps, plan.epochs if epochs is None else epochs))
    what = "Seconds to the target" if plan.aims else "Seconds of a batch"
    return Check(cluster=_words(plan), what=what, rows=tuple(rows))


def _words(plan: Plan) -> str:
    given = plan.cluster.given
    if isinstance(given, Local):
        return str(given)
    name = given.name if isinstance(given, ClusterDescription) else str(plan.cluster.simulated)
    return f"local workers that emulate {name}"


def _check_possible(plan: Plan, entry: Entry) -> None:
    processes = len(parse(entry.strategy).roles(entry.workers))
    if processes > _MOST_PROCESSES:
        bound = f"must be at most {_MOST_PROCESSES} to be emulated on this machine"
        raise ConfigurationError(
            "workers", bound, processes, "plan for fewer workers to check the prediction"
        )
    module = plan.task.build_model(plan.seed)
    if any(each.is_meta for each in module.parameters()):
        raise ConfigurationError(
            "model", "must have weights for a run", "shapes only", "use a task with data"
        )


def emulated(plan: Plan, entry: Entry) -> Local:
    """Return the local workers that an entry is checked with."""
    given = plan.cluster.given
    if isinstance(given, Local):
        found = with_workers(given, entry.workers)
        assert isinstance(found, Local)
        return found
    whole = plan.cluster.simulated
    small = resized(whole, entry.workers)
    compute = small.compute
    if compute is None and small.device is not None:
        # The emulation adds the slowness of ranks itself.
        alone = dataclasses.replace(small, slow={}, delay=None)
        task, strategy, _ = entry.applied(plan.task, small)
        compute = Constant(predict(task, strategy, alone).parts.compute)
    words = {
        name: getattr(small, name)
        for name in ("workers", "link", "slow", "delay", "slow_links", "threads", "card", "oversubscription")
    }
    if small.hosts != 1:
        words |= {"hosts": small.hosts, "inside": small.memory, "order": small.order}
    elif small.link != SHARED_MEMORY:
        words["link"] = small.between
    return Local(compute=compute, **words)


def _checked(plan: Plan, entry: Entry, steps: int | None, epochs: float) -> Checked:
    # Compare runs of one seed: with another one, a run needs another number of steps.
    predicted_s = entry.batch_seconds if entry.target is None else entry.target.first
    task, strategy, cluster = entry.applied(plan.task, emulated(plan, entry))
    roles = roles_of(parse(strategy), cluster)
    updates = steps
    if updates is None and entry.target is None:
        updates = math.ceil(_BATCHES / _batches_per_update(plan, entry))
    if updates is None:
        updates = count_updates(task, parse(strategy), roles, steps=None, epochs=epochs, seed=plan.seed)
    words: dict[str, Any] = {"steps": updates, "seed": plan.seed}
    if entry.target is None:
        task = dataclasses.replace(task, target=None)
        words["evaluate_every"] = updates
    else:
        words |= {"stop_at_target": True, "evaluate_every": evaluation_interval(updates)}
    try:
        run = train(task, strategy, cluster, **words)
    except PacelineError as error:
        reason = str(error).splitlines()[0]
        return Checked(entry=entry, predicted_s=predicted_s, measured_s=None, reason=reason)
    measured_s = run.seconds_to_target if entry.target is not None else _batch_s(run, plan)
    reason = "" if measured_s is not None else "not reached"
    return Checked(
        entry=entry,
        predicted_s=predicted_s,
        measured_s=measured_s,
        reason=reason,
        run=run,
        slowness=_slowness(plan, entry, run),
    )


def _slowness(plan: Plan, entry: Entry, run: Run) -> float | None:
    predicted_s = entry.prediction.parts.compute
    if not plan.cluster.note or not predicted_s:
        return None
    return run.trace.summary().share("compute") * run.step_seconds / predicted_s


def _batches_per_update(plan: Plan, entry: Entry) -> float:
    return entry.prediction.step_seconds / entry.batch_seconds


def _batch_s(run: Run, plan: Plan) -> float | None:
    """Return the seconds in which the run processed one batch of samples. Its first quarter is not counted."""
    history = run.history
    first, last = history[max(0, len(history) // 4 - 1)], history[-1]
    samples = last.samples - first.samples
    return (last.seconds - first.seconds) / samples * plan.batch_size if samples > 0 else None
