"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "\u2013"
"""Content of a cell without a value."""

Texts = Sequence[str]
"""A row of a table."""


def plain_table(header: Texts, rows: Sequence[Texts]) -> str:
    """Return the table as lines of text, with two spaces between columns. Columns of numbers are right-aligned."""
    right = [is_numeric(column, rows) for column in range(len(header))]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = (
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (header, *rows)
    )
    return "\n".join(lines)


def is_numeric(column: int, rows: Sequence[Texts]) -> bool:
    """Return whether a column contains numbers: most texts begin with a digit. The first column contains names."""
    texts = [row[column] for row in rows if row[column] not in ("", NOTHING)]
    numbers = sum(text[:1].isdigit() for text in texts)
    return column > 0 and numbers > 0 and len(texts) <= 2 * numbers
