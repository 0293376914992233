"""The page's table of memory: what each rank held when it held most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from paceline.comparison.entry import Entry
from paceline.costs.units import format_bytes

__all__ = ["MOST_ROWS", "memory_section"]

MOST_ROWS = 32
"""Of one strategy. Neighbouring ranks that held the same share a row."""

_COLUMNS = ("parameters", "gradients", "optimizer", "activations", "buffers", "total")


def memory_section(entries: Sequence[Entry]) -> str:
    """A table for each strategy; nothing where no run knows of its memory."""
    known = [(entry.name, entry.typical.memory) for entry in entries if entry.runs and entry.typical.memory]
    if not known:
        return ""
    tables = "".join(_table(name, memory) for name, memory in known)
    return (
        '<section id="memory" aria-labelledby="memory-title">'
        '<h2 id="memory-title">Memory at the peak, by rank</h2>'
        f'{tables}<p class="note">What the ledger of each rank counts: see docs/memory.md.</p></section>'
    )


def _table(name: str, memory: Sequence[Mapping[str, int]]) -> str:
    heads = "".join(f'<th scope="col">{title}</th>' for title in ("rank", *_COLUMNS))
    rows = _rows(memory)
    body = "".join(
        f'<tr><th scope="row">{label}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for label, cells in rows[:MOST_ROWS]
    )
    left_out = len(rows) - MOST_ROWS
    more = f'<p class="note">{left_out:,} more rows are left out.</p>' if left_out > 0 else ""
    label = escape(f"Memory of {name}")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return (
        f'<h3>{escape(name)}</h3><div class="scroll figures" tabindex="0" role="region" aria-label="{label}">'
        f"{table}</div>{more}"
    )


def _rows(memory: Sequence[Mapping[str, int]]) -> list[tuple[str, list[str]]]:
    """Each with its ranks: "3", or "4-7" of those that held the same."""
    rows: list[tuple[str, list[str]]] = []
    first = 0
    for rank in range(1, len(memory) + 1):
        if rank == len(memory) or memory[rank] != memory[first]:
            label = str(first) if rank == first + 1 else f"{first}-{rank - 1}"
            rows.append((label, [format_bytes(memory[first].get(name, 0)) for name in _COLUMNS]))
            first = rank
    return rows
