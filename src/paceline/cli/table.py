"""Tables: drawn on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["plain_table", "print_table"]

Row = Sequence[str]


def print_table(header: Row, rows: Sequence[Row]) -> None:
    """Print a table to stdout. The first column holds names; a column of numbers is aligned to the right."""
    if sys.stdout.isatty():
        _print_drawn(header, rows)
    else:
        print(plain_table(header, rows))


def plain_table(header: Row, rows: Sequence[Row]) -> str:
    """The table as lines of text, its columns two spaces apart."""
    right = [_is_numeric(column, rows) for column in range(len(header))]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = (
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (header, *rows)
    )
    return "\n".join(lines)


def _print_drawn(header: Row, rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column, name in enumerate(header):
        table.add_column(name, justify="right" if _is_numeric(column, rows) else "left", no_wrap=column == 0)
    for row in rows:
        # As text: square brackets in a cell are no markup.
        table.add_row(*map(Text, row))
    Console().print(table)


def _is_numeric(column: int, rows: Sequence[Row]) -> bool:
    return column > 0 and bool(rows) and all(row[column][:1].isdigit() for row in rows if row[column])
