"""The page's table of peak memory by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from paceline.analysis.comparison.entry import Entry
from paceline.costs.units import format_bytes
from paceline.runs.run import Run

MOST_ROWS = 32
"""Limit for one strategy. Neighbouring ranks with equal memory share a row."""

_PARTS = ", "
"""Separator between the descriptions of stage, tensor part and shard."""
_COLUMNS = ("parameters", "gradients", "optimizer", "activations", "buffers", "total")


def memory_section(entries: Sequence[Entry]) -> str:
    """Return a table for each strategy; empty if no run has recorded its memory."""
    known = [(entry.name, entry.typical) for entry in entries if entry.runs and entry.typical.memory]
    if not known:
        return ""
    tables = "".join(_table(name, run) for name, run in known)
    return (
        '<section id="memory" aria-labelledby="memory-title">'
        '<h2 id="memory-title">Memory at the peak, by rank</h2>'
        f'{tables}<p class="note">docs/memory.md describes what is counted.</p></section>'
    )


def _table(name: str, run: Run) -> str:
    heads = "".join(f'<th scope="col">{title}</th>' for title in ("rank", *_COLUMNS))
    heads += '<th scope="col" class="holds">holds</th>' if run.holds else ""
    rows = _rows(run.memory, run.holds)
    body = "".join(f"<tr>{_cells(*row, shown=bool(run.holds))}</tr>" for row in rows[:MOST_ROWS])
    left_out = len(rows) - MOST_ROWS
    more = f'<p class="note">{left_out:,} more rows are left out.</p>' if left_out > 0 else ""
    label = escape(f"Memory of {name}")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return (
        f'<h3>{escape(name)}</h3><div class="scroll figures" tabindex="0" role="region" aria-label="{label}">'
        f"{table}</div>{more}"
    )


def _cells(label: str, figures: Sequence[str], held: str, *, shown: bool) -> str:
    """Return the cells of a row. `shown` states whether there is a column for `held`."""
    cells = "".join(f"<td>{figure}</td>" for figure in figures)
    words = f'<td class="holds">{escape(held)}</td>' if shown else ""
    return f'<th scope="row">{label}</th>{cells}{words}'


def _rows(memory: Sequence[Mapping[str, int]], holds: Sequence[str]) -> list[tuple[str, list[str], str]]:
    """Return rows labelled with ranks: "3", or "4-7" for ranks with the same layers and memory."""
    parts = [words.split(_PARTS) for words in holds] or [[""]] * len(memory)
    rows: list[tuple[str, list[str], str]] = []
    first = 0
    for rank in range(1, len(memory) + 1):
        if rank == len(memory) or (memory[rank], parts[rank][0]) != (memory[first], parts[first][0]):
            label = str(first) if rank == first + 1 else f"{first}-{rank - 1}"
            figures = [format_bytes(memory[first].get(name, 0)) for name in _COLUMNS]
            rows.append((label, figures, _PARTS.join(_in_common(parts[first:rank]))))
            first = rank
    return rows


def _in_common(parts: Sequence[Sequence[str]]) -> list[str]:
    """Return the parts of the descriptions that are the same for all ranks."""
    return [part for part in parts[0] if all(part in others for others in parts)]
