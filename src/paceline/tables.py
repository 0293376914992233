"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["NOTHING", "Texts", "is_numeric", "plain_table"]

NOTHING = "\u2013"
"""What stands in a cell that has no figure."""

Texts = Sequence[str]
"""A row."""


def plain_table(header: Texts, rows: Sequence[Texts]) -> str:
    """The table as lines of text, its columns two spaces apart. A column of numbers is aligned to the right."""
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
    """Whether a column holds numbers: most of its texts begin with a digit. The first one holds names."""
    texts = [row[column] for row in rows if row[column] not in ("", NOTHING)]
    numbers = sum(text[:1].isdigit() for text in texts)
    return column > 0 and numbers > 0 and len(texts) <= 2 * numbers
