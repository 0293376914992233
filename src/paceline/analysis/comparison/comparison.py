"""The result of a comparison: entries, table, winner and summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from paceline.analysis.comparison.entry import Entry, what_differs
from paceline.analysis.comparison.saved import SavedComparison
from paceline.analysis.comparison.summary import summary
from paceline.analysis.comparison.table import Row, cells, columns, rows
from paceline.analysis.comparison.title import title as title_of
from paceline.analysis.comparison.verdict import order
from paceline.costs.units import format_seconds
from paceline.files.writing import finite
from paceline.runs.summary import metric_name
from paceline.show import markup
from paceline.show.tables import plain_table

if TYPE_CHECKING:
    from paceline.analysis.comparison.proof import Proof


class Table(Sequence[Row]):
    """The rows of a comparison. Its text is a table."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._rows = rows(entries)

    @property
    def header(self) -> list[str]:
        """Column titles."""
        return columns(self._rows)

    @property
    def cells(self) -> list[list[str]]:
        """The rows as texts."""
        return [cells(row, self._rows) for row in self._rows]

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __str__(self) -> str:
        return plain_table(self.header, self.cells)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return markup.table(self.header, self.cells)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """The result of `pl.compare`. Its text is the table and the summary. A notebook shows curves too."""

    entries: tuple[Entry, ...]
    """One entry for each strategy, in the order of the runs."""

    @property
    def table(self) -> Table:
        """One row for each entry: medians over its runs."""
        return Table(self.entries)

    @property
    def winner(self) -> str | None:
        """Name of the entry that reached the target first or, without a target, had the most samples per second.

        None if there is no such entry, or if the entries trained different tasks.
        """
        best = order(self.table)
        return best[0].name if best and not self.differences else None

    @property
    def differences(self) -> list[str]:
        """Differences between the tasks of the entries, such as "samples 512 (async) and 1,024 (sync)"."""
        return what_differs(self.entries)

    @property
    def summary(self) -> list[str]:
        """Sentences: the winner and the reason, the slow rank and its cost."""
        return summary(self.entries)

    @property
    def failed(self) -> list[Entry]:
        """The entries that failed."""
        return [entry for entry in self.entries if entry.error is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures and the summary as a dictionary for JSON."""
        return {
            "entries": [finite(dataclasses.asdict(row)) for row in self.table],
            "winner": self.winner,
            "differences": self.differences,
            "summary": self.summary,
        }

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        command: str | None = None,
        story: Sequence[str | Proof] = (),
    ) -> None:
        """Write a self-contained HTML page. `command` is the command that created the comparison.

        The default title names the cluster and the winner.

        The page begins with `story`: paragraphs, and bars of predicted and measured times, in this order.
        """
        from paceline.report import write_page

        write_page(path, self.entries, title=title or title_of(self.entries), command=command, story=story)

    def save(self, directory: str | Path) -> None:
        """Save each run in a separate directory, and comparison.json. `paceline report` reads them."""
        SavedComparison(Path(directory)).save(self.entries)

    def __repr__(self) -> str:
        names = ", ".join(entry.name for entry in self.entries)
        return f"<Comparison of {names}: {f'{self.winner} wins' if self.winner else 'no winner'}>"

    def __str__(self) -> str:
        return "\n".join([str(self.table), "", *self.summary])

    def _repr_html_(self) -> str:
        table = self.table
        return markup.table(table.header, table.cells) + _curves(self.entries) + markup.items(self.summary)


def _curves(entries: Sequence[Entry]) -> str:
    """Return curves of the metric of each entry's typical run; of the loss if there is no metric."""
    runs = [(entry.name, entry.typical) for entry in entries if entry.runs]
    if not runs:
        return ""
    looks = any(run.metric is not None for _, run in runs)
    lines = [
        markup.Line(
            name,
            [record.seconds for record in run.history],
            [record.metric if looks else record.loss for record in run.history],
        )
        for name, run in runs
    ]
    title = metric_name(runs[0][1]) if looks else "loss"
    return markup.chart(title, lines, format_seconds(max(run.seconds for _, run in runs)))
