"""The page's table of memory: what each rank held when it held most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from paceline.comparison.entry import Entry
from paceline.costs.units import format_bytes
from paceline.run import Run

__all__ = ["MOST_ROWS", "memory_section"]

MOST_ROWS = 32
"""Of one strategy. Neighbouring ranks that held the same share a row."""

_PARTS = ", "
"""Between what is said of stage, tensor part and shard."""
_COLUMNS = ("parameters", "gradients", "optimizer", "activations", "buffers", "total")


def memory_section(entries: Sequence[Entry]) -> str:
    """A table for each strategy; nothing where no run knows of its memory."""
    known = [(entry.name, entry.typical) for entry in entries if entry.runs and entry.typical.memory]
    if not known:
        return ""
    tables = "".join(_table(name, run) for name, run in known)
    return (
        '<section id="memory" aria-labelledby="memory-title">'
        '<h2 id="memory-title">Memory at the peak, by rank</h2>'
        f'{tables}<p class="note">What the ledger of each rank counts: see docs/memory.md.</p></section>'
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
    """`shown`: whether what is held has a column."""
    cells = "".join(f"<td>{figure}</td>" for figure in figures)
    words = f'<td class="holds">{escape(held)}</td>' if shown else ""
    return f'<th scope="row">{label}</th>{cells}{words}'


def _rows(memory: Sequence[Mapping[str, int]], holds: Sequence[str]) -> list[tuple[str, list[str], str]]:
    """Each with its ranks: "3", or "4-7" of those that held as much of the same layers."""
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
    """What is said of all of them."""
    return [part for part in parts[0] if all(part in others for others in parts)]
