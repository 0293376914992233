"""The table of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from paceline.costs.units import format_bytes, format_seconds
from paceline.planner.entry import Entry
from paceline.show import markup
from paceline.show.tables import NOTHING, plain_table

Column = tuple[str, Callable[[Entry], str]]


class PlanTable(Sequence[Entry]):
    """The entries of a plan. Its text is a table."""

    def __init__(self, entries: Sequence[Entry], *, aims: bool) -> None:
        """`aims` tells whether times to the target were estimated."""
        self._entries = entries
        self._columns = list(_columns(entries, aims=aims))

    @property
    def header(self) -> list[str]:
        """Column titles."""
        return [title for title, _ in self._columns]

    @property
    def cells(self) -> list[list[str]]:
        """The rows as texts."""
        return [[text(entry) for _, text in self._columns] for entry in self._entries]

    @overload
    def __getitem__(self, place: int) -> Entry: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Entry]: ...
    def __getitem__(self, place: int | slice) -> Entry | Sequence[Entry]:
        return self._entries[place]

    def __len__(self) -> int:
        return len(self._entries)

    def __str__(self) -> str:
        return plain_table(self.header, self.cells)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return markup.table(self.header, self.cells)


def _columns(entries: Sequence[Entry], *, aims: bool) -> list[Column]:
    columns: list[Column] = [
        ("strategy", lambda entry: entry.strategy),
        ("workers", lambda entry: str(entry.workers)),
    ]
    if any(entry.recompute for entry in entries):
        columns.append(("recompute", lambda entry: "yes" if entry.recompute else "no"))
    if aims:
        columns.append(("to target, about", _to_target))
    columns.append(("batch", lambda entry: format_seconds(entry.batch_seconds)))
    if not aims and not all(entry.equals_single for entry in entries):
        columns.append(("steps of single", lambda entry: "yes" if entry.equals_single else "no, not ranked"))
    columns += [(name, _share(name)) for name in ("compute", "communicate", "wait", "bubble")]
    columns.append(("memory", lambda entry: format_bytes(entry.prediction.memory_bytes)))
    if any(entry.cost is not None for entry in entries):
        columns.append(("cost", lambda entry: money(entry.cost)))
    return columns


def _to_target(entry: Entry) -> str:
    if entry.target is None:
        return NOTHING
    spread = f" ±{entry.target.spread:.0%}" if entry.target.seeds > 1 else ""
    return f"{format_seconds(entry.target.seconds)}{spread}"


def _share(name: str) -> Callable[[Entry], str]:
    def text(entry: Entry) -> str:
        part = getattr(entry.prediction.parts, name)
        return f"{max(0.0, part / entry.prediction.step_seconds):.0%}"

    return text


def money(value: float | None) -> str:
    """Return a price, in the unit of `price_per_hour`."""
    return NOTHING if value is None else f"{value:.3g}"
