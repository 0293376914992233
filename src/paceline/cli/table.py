"""Tables: drawn on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from paceline.show.tables import Texts, is_numeric, plain_table


def print_table(header: Texts, rows: Sequence[Texts]) -> None:
    """Print a table to stdout. The first column contains names. Columns of numbers are right-aligned."""
    if sys.stdout.isatty():
        _print_drawn(header, rows)
    else:
        print(plain_table(header, rows))


def _print_drawn(header: Texts, rows: Sequence[Texts]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column, name in enumerate(header):
        table.add_column(name, justify="right" if is_numeric(column, rows) else "left", no_wrap=column == 0)
    for row in rows:
        # Cells are Text, because a string with square brackets would be parsed as markup.
        table.add_row(*map(Text, row))
    Console().print(table)
