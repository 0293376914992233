"""The result of `pl.plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.costs.units import format_seconds
from paceline.errors import ConfigurationError
from paceline.planner.bottlenecks import Bottleneck, bottlenecks
from paceline.planner.entry import Entry
from paceline.planner.explain import Difference, difference, summary
from paceline.planner.plan_table import PlanTable, money
from paceline.planner.sizing import PlannedCluster
from paceline.run_length import DEFAULT_EPOCHS
from paceline.show import markup
from paceline.show.tables import plain_table
from paceline.task.task import Task

if TYPE_CHECKING:
    from paceline.planner.check import Check

_SHOWN = 12


@dataclass(kw_only=True, eq=False, repr=False)
class Plan:
    """Configurations of a task on a cluster, best first. Its text is a table and three sentences."""

    task: Task
    cluster: PlannedCluster
    goal: str
    batch_size: int
    entries: tuple[Entry, ...]
    """Configurations that fit, best first. Those that cannot be compared are last."""
    rejected: tuple[Entry, ...] = ()
    """Configurations that do not fit into memory."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Strategies that were not tried, and the reasons."""
    missed: Sequence[str] = ()
    """Configurations that did not reach the target in a simulation, and the reasons."""
    tried: int = 0
    """Number of predictions."""
    skipped: int = 0
    was_cut: bool = False
    epochs: float = DEFAULT_EPOCHS
    """Maximum number of passes over the data, for runs that do not reach the target."""
    seed: int = 0
    checked: Check | None = None
    """The last result of `check`. None if nothing was run."""

    @property
    def best(self) -> Entry:
        """The best configuration. `pl.train(task, plan.best, cluster)` runs it."""
        ranked = self.ranked
        if not ranked:
            missed = "; ".join(self.missed) or "no strategy with the steps of single fits"
            remedy = 'plan for more epochs, or with goal="step"'
            raise ConfigurationError("target", "must be reached in a simulation", missed, remedy)
        return ranked[0]

    @property
    def aims(self) -> bool:
        """Whether times to the target were estimated."""
        return any(entry.target is not None for entry in self.entries) or bool(self.missed)

    @property
    def ranked(self) -> list[Entry]:
        """The entries that can be compared, best first."""
        if self.aims:
            return [entry for entry in self.entries if entry.target is not None]
        return [entry for entry in self.entries if entry.equals_single]

    @property
    def table(self) -> PlanTable:
        """One row for each entry, best first."""
        return PlanTable(self.entries, aims=self.aims)

    @cached_property
    def bottlenecks(self) -> list[Bottleneck]:
        """What limits the best entry, the largest first."""
        return bottlenecks(self.task, self.best, self.cluster, self.rejected)

    @property
    def summary(self) -> list[str]:
        """Three sentences: what limits the best entry, what the runner-up would need, and what was not tried."""
        return summary(self)

    def value(self, entry: Entry) -> float:
        """Return the figure that entries are ranked by."""
        if self.goal == "memory":
            return entry.prediction.memory_bytes
        if self.goal == "cost" and entry.cost is not None:
            return entry.cost
        return entry.seconds

    def worth(self, entry: Entry) -> str:
        """Return this figure as text."""
        if self.goal == "memory":
            return f"{entry.prediction.memory_bytes / 1e9:.3g} GB on the largest rank"
        per = "the run to the target" if entry.target is not None else "a batch"
        if self.goal == "cost":
            return f"{money(entry.cost)} for {per}"
        if entry.target is None:
            return f"{format_seconds(entry.batch_seconds)} for {per}"
        seeds = f"{entry.target.seeds} seed{'s' * (entry.target.seeds != 1)}"
        return f"about {format_seconds(entry.target.seconds)} to the target (an estimate, {seeds})"

    def explain(self, a: Entry | int | str, b: Entry | int | str) -> Difference:
        """Compare two entries term by term. Name them by their place in `entries`, by their strategy, or as entries."""
        return difference(self.entry(a), self.entry(b))

    def entry(self, which: Entry | int | str) -> Entry:
        """Return an entry, given its place or its strategy. Of equal strategies the best one is returned."""
        everything = [*self.entries, *self.rejected]
        if isinstance(which, Entry):
            return which
        if isinstance(which, int) and not isinstance(which, bool) and 0 <= which < len(everything):
            return everything[which]
        for entry in everything if isinstance(which, str) else ():
            if which in (entry.strategy, str(entry)):
                return entry
        bound = f"must be an entry, its strategy, or a place from 0 to {len(everything) - 1}"
        raise ConfigurationError("entry", bound, which, "see plan.table")

    def check(self, **words: Any) -> Check:
        """Run the best entries, and compare predicted with measured times. See `planner.check.check`."""
        from paceline.planner.check import check

        self.checked = check(self, **words)
        return self.checked

    def report(self, path: str | Path, *, title: str | None = None, command: str | None = None) -> None:
        """Write a self-contained HTML page. `command` is the command that made the plan."""
        from paceline.report.plan_page import write_plan_page

        write_plan_page(path, self, title=title, command=command)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a dictionary for JSON."""
        return {
            "goal": self.goal,
            "best": self.best.as_dict(),
            "entries": [entry.as_dict() for entry in self.entries],
            "rejected": [entry.as_dict() for entry in self.rejected],
            "refused": dict(self.refused),
            "missed": list(self.missed),
            "summary": self.summary,
            "checked": None if self.checked is None else self.checked.as_dict(),
        }

    def __str__(self) -> str:
        table = self.table
        text = plain_table(table.header, table.cells[:_SHOWN])
        left = len(self.entries) - _SHOWN
        text += f"\n… and {left} more configurations" if left > 0 else ""
        return "\n".join([text, "", *self.summary, *([f"\n{self.checked}"] if self.checked else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self.table
        return markup.table(table.header, table.cells[:_SHOWN]) + markup.items(self.summary)
