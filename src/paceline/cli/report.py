"""`paceline report`: an HTML page about saved runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from paceline.cli.failures import exit_codes
from paceline.cli.files import check_writable
from paceline.cli.table import print_table
from paceline.errors import RunError

Directories = Annotated[
    list[Path], Argument(metavar="DIR…", help="Directories saved by `train --out` or `compare --out`.")
]
Out = Annotated[Path, Option(metavar="FILE", help="Output file.")]


def report(directories: Directories, out: Out = Path("report.html")) -> None:
    """Write one HTML report that compares saved runs."""
    with exit_codes():
        check_writable("--out", out)
        from paceline.analysis.comparison.comparison import Comparison
        from paceline.analysis.comparison.saved import load_entries

        found = Comparison(entries=tuple(load_entries(directories)))
        try:
            found.report(out)
        except OSError as error:
            raise RunError(f"the report could not be saved: {error}") from error
        print_table(found.table.header, found.table.cells)
        typer.echo("\n" + "\n".join([*found.summary, "", f"wrote {out}"]))
